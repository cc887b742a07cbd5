"""A report on memory as lines for a terminal."""

from __future__ import annotations

import textwrap

from ronde.bench.columns import columns
from ronde.bench.memory.formula import FORMULAS
from ronde.bench.memory.report import MemoryReport, PlanMemory
from ronde.plan import expand
from ronde.trace.memory import show_bytes

__all__ = ["table"]

_HEADINGS = (
    "plan",
    "parameters",
    "gradients",
    "optimizer",
    "together",
    "formula",
    "ratio",
    "buckets",
    "activations",
    "peak",
    "rank",
)


# Behind the activations, where what they should be is known.
_PREDICTED = ("by formula", "its ratio")


def table(report: MemoryReport) -> str:
    """What was measured beside the formula, under a line that says of what."""
    machine, sizes = report.machine, report.sizes
    heading = (
        f"{report.workload}: {sizes.parameters:,} parameters, {sizes.slots} in the optimizer for each; "
        f"{report.ranks} rank{'s' if report.ranks > 1 else ''} on {machine.processors}, "
        f"{machine.cores} cores; torch {machine.torch}"
    )
    headings: list[str] = list(_HEADINGS)
    if report.activations is not None:
        after = headings.index("activations") + 1
        headings[after:after] = _PREDICTED
    rows = [tuple(headings), *(_row(report, result) for result in report.results)]
    legend = [
        "a row is the rank with the largest ratio: parameters, gradients and optimizer together over the "
        "formula, in bytes of unique storages; buckets, activations and the rest come in addition; "
        f"the peak is that of the {report.results[0].ranks[0].where}"
    ]
    for result in report.results:
        legend.append(f"{result.plan}: {FORMULAS[expand(result.plan).state.placement]}")
    if report.activations is not None:
        legend.append(f"activations by formula: from what autograd saves of {report.activations.rows} rows")
    told = "\n".join(textwrap.fill(line, 100, subsequent_indent="  ") for line in legend)
    return "\n\n".join([heading, columns(rows), told])


def _row(report: MemoryReport, result: PlanMemory) -> tuple[str, ...]:
    rank = result.shown(report.sizes)
    memory = result.ranks[rank]
    activations = memory.peaks.get("activations")
    return (
        result.plan,
        *(show_bytes(memory.peaks.get(kind, 0)) for kind in ("parameters", "gradients", "optimizer")),
        show_bytes(memory.state),
        show_bytes(result.formula(report.sizes, rank)),
        f"{result.ratio(report.sizes, rank):.3f}",
        show_bytes(memory.peaks.get("buckets", 0)),
        "unknown" if activations is None else show_bytes(activations),
        *_predicted(report, result, activations),
        show_bytes(memory.total),
        str(rank),
    )


def _predicted(report: MemoryReport, result: PlanMemory, activations: int | None) -> tuple[str, ...]:
    """The formula of activations, and what was measured over it."""
    if report.activations is None:
        return ()
    formula = result.activations_formula(report.activations)
    if formula is None:
        return "none", ""
    return show_bytes(formula), "" if activations is None else f"{activations / formula:.3f}"

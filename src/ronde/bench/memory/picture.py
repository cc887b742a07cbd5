"""A report on memory as stacked bars, one for each plan, with the formula as a mark across."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ronde.bench.memory.report import MemoryReport, PlanMemory
from ronde.trace.resident import Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_MIB = 2**20
# Activations are left out: they are the same wherever state lives, and hide the rest.
_STATE: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "buckets")


def draw(report: MemoryReport) -> Figure:
    """A figure of the rank with the largest ratio under each plan.

    Of activations, with their formula, where plans differ in how is computed; else of state.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.5 + 1.3 * len(report.results), 4.5), layout="constrained")
    axes = figure.subplots()
    shown = [result.shown(report.sizes) for result in report.results]
    places = range(len(report.results))
    reached = [0.0 for _ in places]
    drawn: tuple[Kind, ...] = _STATE if report.activations is None else ("activations",)
    for kind in drawn:
        heights = [
            result.ranks[rank].peaks.get(kind, 0) / _MIB
            for result, rank in zip(report.results, shown, strict=True)
        ]
        axes.bar(places, heights, 0.6, bottom=reached, label=kind)
        reached = [low + height for low, height in zip(reached, heights, strict=True)]
    formulas = {
        place: formula / _MIB
        for place, (result, rank) in enumerate(zip(report.results, shown, strict=True))
        if (formula := _formula(report, result, rank)) is not None
    }
    axes.hlines(
        list(formulas.values()), [place - 0.4 for place in formulas], [place + 0.4 for place in formulas],
        color="black", linewidth=1.5, label="formula",
    )  # fmt: skip
    axes.set_xticks(places, [result.plan for result in report.results])
    axes.set_ylabel("MiB on a rank")
    axes.set_ylim(0, 1.1 * max(*reached, *formulas.values()))
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    machine = report.machine
    figure.suptitle(
        f"{report.workload}, {report.ranks} ranks, {report.sizes.parameters / 1e6:.1f} million parameters, "
        f"torch {machine.torch}",
        fontsize="small",
    )
    return figure


def _formula(report: MemoryReport, result: PlanMemory, rank: int) -> int | None:
    if report.activations is None:
        return result.formula(report.sizes, rank)
    return result.activations_formula(report.activations)


def save(report: MemoryReport, path: Path) -> None:
    """Draw to a file whose ending says the format."""
    draw(report).savefig(path, dpi=150)

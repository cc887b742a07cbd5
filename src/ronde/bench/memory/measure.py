"""Memory of a workload under each plan, beside the formula: `ronde bench memory`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ronde.bench.choice import check_device, check_known
from ronde.bench.contenders import plain_words
from ronde.bench.machine import Machine
from ronde.bench.memory.formula import FORMULAS, Activations, Sizes, expected, expected_activations
from ronde.bench.process_set import Process, run_together
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import ROUNDING, Progress, are_near
from ronde.bench.sample import parse
from ronde.bench.steps import DP_WORKLOADS, LANGUAGE_MODELS
from ronde.cluster.devices import device_of_ranks
from ronde.errors import BenchError, UsageError
from ronde.plan import Compute, check, expand
from ronde.trace.memory import Memory
from ronde.trace.run_directory import RunDirectory
from ronde.trace.summary import read_summary

__all__ = [
    "QUANTITIES", "WORKLOADS", "activations_of", "compare", "measure_plan", "notes_of", "plans_with_formulas",
    "rows_of", "sizes_of",
]  # fmt: skip

WORKLOADS = (*DP_WORKLOADS, *LANGUAGE_MODELS)

_BYTES = Quantity(unit="bytes")
QUANTITIES = {
    **dict.fromkeys(("parameters", "gradients", "optimizer"), _BYTES),
    "state": Quantity(unit="bytes", drawn=True),
    "formula": Quantity(unit="bytes", drawn=True),
    "ratio": Quantity(unit="x"),
    **dict.fromkeys(("buckets", "activations", "activations by formula"), _BYTES),
    "their ratio": Quantity(unit="x"),
    "peak": _BYTES,
}
_TIMEOUT = 900.0
_ROUNDING_16 = 0.01  # tolerance of losses in bfloat16, which has 8 bits of precision
_STEPS = ("--warm-up", "2", "--steps", "2")  # enough steps for the last ones to run with full caches


def plans_with_formulas() -> tuple[str, ...]:
    """Return the presets that differ in the placement of state."""
    return tuple("ddp" if each == "replicated" else each for each in FORMULAS)


def compare(
    workload: str,
    plans: Sequence[str],
    *,
    ranks: int,
    device: str = "cpu",
    environment: Mapping[str, str],
    progress: Progress,
) -> Report:
    """Train the workload under each plan, one after the other.

    Args:
        device: the device of the script, "cpu" or "cuda".

    Raises:
        UsageError: a workload, device or plan is unknown, or has no formula.
        BenchError: a run fails, or two did not train alike.
    """
    check_known([workload], WORKLOADS, what="workload")
    check_device(device, environment)
    for plan in plans:
        described = expand(plan)
        check(described, ranks, device_of_ranks(environment))
        if described.mesh.cuts_models or described.state.placement not in FORMULAS:
            known = ", ".join(plans_with_formulas())
            raise UsageError(f"the memory of {plan} has no formula; choose among {known} [R850]")
    machine = Machine.here()
    sizes = sizes_of(workload, environment)
    told = any(expand(plan).compute != Compute() for plan in plans)
    activations = activations_of(workload, ranks, environment, device=device) if told else None
    rounding = _ROUNDING_16 if workload in LANGUAGE_MODELS else ROUNDING
    results: list[Result] = []
    losses: dict[str, float] = {}
    where = "process" if device == "cpu" else "device"
    for plan in dict.fromkeys(plans):
        memories, losses[plan] = measure_plan(
            workload, plan, ranks=ranks, device=device, environment=environment
        )
        _check_alike(losses, rounding)
        results += rows_of(plan, memories, sizes, activations)
        progress(f"{plan}: state {max(each.state for each in memories):,} bytes on a rank")
    return Report(
        kind="memory",
        machine=machine,
        settings={"workload": workload, "parameters": f"{sizes.parameters:,}", "ranks": str(ranks)},
        quantities=QUANTITIES,
        results=tuple(results),
        notes=notes_of(list(losses), sizes, activations, where),
    )


def rows_of(
    plan: str, memories: Sequence[Memory], sizes: Sizes, activations: Activations | None
) -> list[Result]:
    """Return a row for each rank under a plan."""
    described, found = expand(plan), []
    for rank, memory in enumerate(memories):
        ranks = len(memories)
        formula = sum(expected(described.state.placement, sizes, ranks=ranks, rank=rank).values())
        figures: dict[str, float] = {str(kind): nbytes for kind, nbytes in memory.peaks.items()}
        figures |= {"state": memory.state, "formula": formula, "ratio": memory.state / formula}
        figures["peak"] = memory.total
        kept = None if activations is None else expected_activations(described.compute, activations)
        if kept is not None:
            figures["activations by formula"] = kept
            if "activations" in figures:
                figures["their ratio"] = figures["activations"] / kept
        samples = {name: (float(value),) for name, value in figures.items()}
        found.append(Result(labels={"plan": plan, "rank": f"rank {rank}"}, samples=samples))
    return found


def notes_of(
    plans: Sequence[str], sizes: Sizes, activations: Activations | None, where: str
) -> tuple[str, ...]:
    """Return the notes below the table."""
    told = [
        "state: parameters, gradients and optimizer together, in bytes of unique storages; buckets, "
        f"activations and the rest come in addition; the optimizer keeps {sizes.slots} numbers for each "
        f"parameter; the peak is that of the {where}",
        *(f"{plan}: {FORMULAS[expand(plan).state.placement]}" for plan in plans),
    ]
    if activations is not None:
        told.append(f"activations by formula: from what autograd saves of {activations.rows} rows")
    return tuple(told)


def sizes_of(workload: str, environment: Mapping[str, str]) -> Sizes:
    """Count a workload's parameters, in a process of its own."""
    return Sizes(**_counts((workload,), environment))


def activations_of(
    workload: str, ranks: int, environment: Mapping[str, str], *, device: str = "cpu"
) -> Activations:
    """Count the bytes that autograd saves on the rank with most rows."""
    return Activations(**_counts((workload, str(ranks), device), environment))


def _counts(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, int]:
    command = (sys.executable, "-m", "ronde.bench.memory.probe", *arguments)
    output, _ = run_together([Process(command=command, environment=environment)], timeout=_TIMEOUT)
    return json.loads(output)


def measure_plan(
    workload: str, plan: str, *, ranks: int, device: str = "cpu", environment: Mapping[str, str]
) -> tuple[tuple[Memory, ...], float]:
    """Run a plan once; return the memory of each rank, and the last loss."""
    start = (sys.executable, "-m", "ronde", "run", "--ranks", str(ranks), "--plan", plan, "--seed", "0")
    words = plain_words(workload, _STEPS if device == "cpu" else (*_STEPS, "--device", device))
    with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
        process = Process(command=(*start, "--run-dir", folder, *words), environment=environment)
        output, wall = run_together([process], timeout=_TIMEOUT)
        directory = RunDirectory(path=Path(folder), run_id="")
        memories = tuple(_memory(directory, rank) for rank in range(ranks))
    return memories, parse(output, wall_seconds=wall).loss


def _memory(directory: RunDirectory, rank: int) -> Memory:
    summary = read_summary(directory.summary(rank))
    if summary is None or summary.memory is None:
        raise BenchError(
            f"rank {rank} wrote no summary of its memory to {directory.summary(rank).name} [R852]"
        )
    return summary.memory


def _check_alike(losses: Mapping[str, float], rounding: float) -> None:
    (first, loss), (plan, other) = next(iter(losses.items())), list(losses.items())[-1]
    if not are_near(loss, other, rounding):
        raise BenchError(
            f"the plans did not train alike: the last loss is {loss:.6g} under {first} and "
            f"{other:.6g} under {plan}; run `ronde verify --plan {plan}` [R854]"
        )

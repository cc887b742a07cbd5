"""`ronde bench memory`: one workload trained under each plan, and what every rank held."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ronde.bench.choice import check_device, check_known
from ronde.bench.contenders import plain_words, shown
from ronde.bench.data_parallel import WORKLOADS as DATA_PARALLEL
from ronde.bench.machine import Machine
from ronde.bench.memory.activations import Activations
from ronde.bench.memory.formula import FORMULAS, Sizes
from ronde.bench.memory.report import MemoryReport, PlanMemory
from ronde.bench.overhead import LANGUAGE_MODELS
from ronde.bench.process_set import Process, run_together
from ronde.bench.rounds import ROUNDING
from ronde.bench.sample import parse
from ronde.cluster.devices import device_of_ranks
from ronde.errors import BenchError, UsageError
from ronde.plan import Compute, check, expand
from ronde.trace.memory import Memory
from ronde.trace.run_directory import RunDirectory
from ronde.trace.summary import read_summary

__all__ = ["WORKLOADS", "activations_of", "compare", "measure_plan", "plans_with_formulas", "sizes_of"]

WORKLOADS = (*DATA_PARALLEL, *LANGUAGE_MODELS)

_TIMEOUT = 900.0
# Of the losses of models in bfloat16, whose numbers have 8 bits.
_ROUNDING_16 = 0.01
# So many that the last are measured, when caches have been filled.
_STEPS = ("--warm-up", "2", "--steps", "2")


def plans_with_formulas() -> tuple[str, ...]:
    """The presets that differ in where ranks have state."""
    return tuple("ddp" if each == "replicated" else each for each in FORMULAS)


def compare(
    workload: str,
    plans: Sequence[str],
    *,
    ranks: int,
    device: str = "cpu",
    environment: Mapping[str, str],
    progress: Callable[[PlanMemory], None],
) -> MemoryReport:
    """Train the workload under each plan, one after the other.

    Args:
        device: where the script trains: "cpu" or "cuda".
        progress: hears of each.

    Raises:
        UsageError: for a workload, device or plan that there is not, or of which there is no formula.
        BenchError: when a run fails, or two did not train alike.
    """
    check_known([workload], WORKLOADS, what="workload")
    check_device(device, environment)
    for plan in plans:
        described = expand(plan)
        check(described, ranks, device_of_ranks(environment))
        if described.mesh.cuts_models or described.state.placement not in FORMULAS:
            known = ", ".join(plans_with_formulas())
            raise UsageError(f"there is no formula for the memory of {plan}; choose among {known} [R850]")
    machine = Machine.here()
    sizes = sizes_of(workload, environment)
    told = any(expand(plan).compute != Compute() for plan in plans)
    activations = activations_of(workload, ranks, environment, device=device) if told else None
    results: list[PlanMemory] = []
    for plan in dict.fromkeys(plans):
        results.append(measure_plan(workload, plan, ranks=ranks, device=device, environment=environment))
        _check_alike(results[0], results[-1], _ROUNDING_16 if workload in LANGUAGE_MODELS else ROUNDING)
        progress(results[-1])
    return MemoryReport(
        machine=machine, workload=workload, sizes=sizes, results=tuple(results), activations=activations
    )


def sizes_of(workload: str, environment: Mapping[str, str]) -> Sizes:
    """Count a workload's parameters, in a process of its own."""
    return Sizes(**_told("sizes", (workload,), environment))


def activations_of(
    workload: str, ranks: int, environment: Mapping[str, str], *, device: str = "cpu"
) -> Activations:
    """What plain torch keeps of the rows of the rank that has most of them, seen in a process of its own."""
    return Activations(**_told("saved_tensors", (workload, str(ranks), device), environment))


def _told(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, int]:
    command = (sys.executable, "-m", f"ronde.bench.memory.{module}", *arguments)
    output, _ = run_together([Process(command=command, environment=environment)], timeout=_TIMEOUT)
    return json.loads(output)


def measure_plan(
    workload: str, plan: str, *, ranks: int, device: str = "cpu", environment: Mapping[str, str]
) -> PlanMemory:
    """One run, and the account that each rank gave of it."""
    options = ("--ranks", str(ranks), "--plan", plan, "--seed", "0")
    start = (sys.executable, "-m", "ronde", "run", *options)
    words = plain_words(workload, _STEPS if device == "cpu" else (*_STEPS, "--device", device))
    with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
        process = Process(command=(*start, "--run-dir", folder, *words), environment=environment)
        output, wall = run_together([process], timeout=_TIMEOUT)
        directory = RunDirectory(path=Path(folder), run_id="")
        memories = tuple(_memory(directory, rank) for rank in range(ranks))
    loss = parse(output, wall_seconds=wall).loss
    return PlanMemory(plan=plan, command=shown((*start, *words)), ranks=memories, loss=loss)


def _memory(directory: RunDirectory, rank: int) -> Memory:
    summary = read_summary(directory.summary(rank))
    if summary is None or summary.memory is None:
        raise BenchError(
            f"rank {rank} left no account of its memory in {directory.summary(rank).name} [R852]"
        )
    return summary.memory


def _check_alike(first: PlanMemory, other: PlanMemory, rounding: float) -> None:
    if not abs(first.loss - other.loss) <= rounding * max(abs(first.loss), abs(other.loss), 0.1):
        raise BenchError(
            f"the plans did not train alike: the last loss is {first.loss:.6g} under {first.plan} and "
            f"{other.loss:.6g} under {other.plan}; run `ronde verify --plan {shlex.quote(other.plan)}` [R854]"
        )

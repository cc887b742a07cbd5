"""Steps of a workload under each mesh of some ranks: `ronde bench parallel`."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.bench.choice import check_known
from ronde.bench.contenders import Contender, plain, plain_words, step_words, under_ronde
from ronde.bench.machine import Machine
from ronde.bench.memory.measure import sizes_of
from ronde.bench.process_set import Process, run_together
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import Progress, ratios
from ronde.bench.rounds import measure as measure_in_rounds
from ronde.bench.steps import DP_WORKLOADS
from ronde.cluster.devices import device_of_ranks
from ronde.errors import BenchError, PlanError
from ronde.plan import check, expand
from ronde.plan.compute import Schedule
from ronde.plan.schedule import bubble
from ronde.trace.run_directory import RunDirectory
from ronde.trace.step_file import read_steps, steps_path
from ronde.trace.summary import read_summary

__all__ = [
    "ONE_PROCESS", "QUANTITIES", "WORKLOADS", "RankFigures", "arguments_of", "in_micro_batches", "measure",
    "meshes", "notes_of", "row_of",
]  # fmt: skip

WORKLOADS = ("transformer-512", *DP_WORKLOADS)
ONE_PROCESS = "one process"
QUANTITIES = {
    "step": Quantity(unit="ms", spread=True, drawn=True),
    "of one process": Quantity(unit="x"),
    "of the ideal": Quantity(unit="x"),
    "parameters": Quantity(unit="bytes"),
    "activations": Quantity(unit="bytes"),
    "sent": Quantity(unit="MB"),
    "waits": Quantity(unit="%"),
    "bubble": Quantity(unit="%"),
}
_TIMEOUT = 900.0
_LEGEND = (
    "of the ideal: the time of a step over an equal share of one process's, with the bubble of the schedule; "
    "memory, sent bytes and waits are those of the rank with most"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankFigures:
    """Figures of one rank.

    Attributes:
        memory: bytes at their peak, by kind.
        sent: bytes that the rank sends in a usual step.
        waited: the part of a usual step in which the rank waits for others.
    """

    memory: Mapping[str, int]
    sent: int
    waited: float


def meshes(ranks: int, micro_batches: Sequence[int]) -> list[str]:
    """Return the plans of all meshes of data, tensor and pipeline.

    >>> meshes(2, [4])
    ['ddp', 'tensor=2', 'pipeline=2,micro-batches=4']
    """
    found: list[str] = []
    for pipeline in _divisors(ranks):
        for tensor in _divisors(ranks // pipeline):
            sizes = {"data": ranks // pipeline // tensor, "tensor": tensor, "pipeline": pipeline}
            cut = [f"{axis}={size}" for axis, size in sizes.items() if size > 1]
            found.append("ddp" if cut == [f"data={ranks}"] else ",".join(cut))
    return in_micro_batches(found, micro_batches)


def in_micro_batches(plans: Sequence[str], micro_batches: Sequence[int]) -> list[str]:
    """Repeat a pipeline without micro-batches for each number of them.

    Raises:
        PlanError: a text is not a plan.

    >>> in_micro_batches(["ddp", "pipeline=2"], [4, 8])
    ['ddp', 'pipeline=2,micro-batches=4', 'pipeline=2,micro-batches=8']
    """
    found: list[str] = []
    for plan in plans:
        if expand(plan).mesh.pipeline > 1 and "micro-batches" not in plan:
            found += [f"{plan},micro-batches={each}" for each in micro_batches]
        else:
            found.append(plan)
    return found


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def measure(  # noqa: PLR0913 - options of the command
    workload: str,
    plans: Sequence[str],
    *,
    ranks: int,
    rounds: int,
    scale: int,
    steps: int | None,
    environment: Mapping[str, str],
    progress: Progress,
    beside: Sequence[Contender] = (),
) -> Report:
    """Time the workload under each plan; each process has one thread.

    Args:
        scale: the number of the workload's batches in one.
        beside: more contenders, with as many ranks.

    Raises:
        UsageError: the workload is unknown.
        BenchError: a run failed, or two did not train alike.
    """
    check_known([workload], WORKLOADS, what="workload")
    runs, refused = [], []
    for plan in plans:
        try:
            check(expand(plan), ranks, device_of_ranks(environment))
            runs.append(plan)
        except PlanError:
            refused.append(plan)
    machine = Machine.here()
    arguments = arguments_of(scale, steps)
    alone = plain(workload, arguments, environment={**environment, "OMP_NUM_THREADS": "1"})
    contenders = [dataclasses.replace(alone, name=ONE_PROCESS), *beside]
    share: dict[str, Any] = {"ranks": ranks, "threads": 1, "environment": environment}
    for plan in runs:
        made: Contender = under_ronde(workload, arguments, plan=plan, steps=_by_steps(plan), **share)
        contenders.append(dataclasses.replace(made, name=plan))
    measured = measure_in_rounds(workload, contenders, rounds=rounds, progress=progress, first=ONE_PROCESS)
    seconds = {
        name: [sample.seconds / sample.steps for sample in samples] for name, samples in measured.items()
    }
    title = workload if scale == 1 else f"{workload} x {scale}"
    results = []
    for name, own in seconds.items():
        figures = _figures(workload, arguments, name, ranks, environment) if name in runs else ()
        pipeline = _pipeline_of(name) if name in runs else _ONE_STAGE
        ways = 1 if name == ONE_PROCESS else ranks
        results.append(row_of(title, name, own, seconds[ONE_PROCESS], ways, pipeline, figures))
    parameters = sizes_of(workload, environment).parameters
    return Report(
        kind="parallel",
        machine=machine,
        settings={"ranks": str(ranks), "threads": "1", "parameters": f"{parameters:,}"},
        quantities=QUANTITIES,
        results=tuple(results),
        notes=notes_of(refused),
    )


def arguments_of(scale: int, steps: int | None) -> list[str]:
    """Return the arguments of the scripts."""
    return ["--scale", str(scale), *(() if steps is None else ("--steps", str(steps)))]


def notes_of(refused: Sequence[str]) -> tuple[str, ...]:
    """Return the notes below the table, with the plans that were refused."""
    return (_LEGEND, *([f"not in this version: {', '.join(refused)}"] if refused else []))


def row_of(
    workload: str,
    name: str,
    seconds: Sequence[float],
    of_one: Sequence[float] | None,
    ways: int,
    pipeline: tuple[int, int, Schedule],
    ranks: Sequence[RankFigures],
) -> Result:
    """Return the row of a contender.

    Args:
        of_one: seconds of one process in the same rounds; None where that was not measured.
        ways: the number of parts of the work.
        pipeline: stages, micro-batches and schedule.
    """
    idle = float(bubble(*pipeline))
    samples = {"step": tuple(each * 1e3 for each in seconds)}
    if of_one is not None and name != ONE_PROCESS:
        samples["of one process"] = ratios(seconds, of_one)
        samples["of the ideal"] = tuple(each * ways * (1 - idle) for each in samples["of one process"])
    if pipeline[0] > 1:
        samples["bubble"] = (100 * idle,)
    if ranks:
        by_ranks = {
            kind: tuple(float(each.memory.get(kind, 0)) for each in ranks)
            for kind in dict.fromkeys(kind for each in ranks for kind in each.memory)
        }
        by_ranks["sent"] = tuple(each.sent / 1e6 for each in ranks)
        by_ranks["waits"] = tuple(100 * each.waited for each in ranks)
        samples |= {kind: (max(numbers),) for kind, numbers in by_ranks.items()}
        samples |= {f"{kind} of each rank": numbers for kind, numbers in by_ranks.items()}
    return Result(labels={"workload": workload, "plan": name}, samples=samples)


_ONE_STAGE: tuple[int, int, Schedule] = (1, 1, "gpipe")


def _pipeline_of(plan: str) -> tuple[int, int, Schedule]:
    values = expand(plan)
    return values.mesh.pipeline, values.compute.micro_batches, values.compute.schedule or "gpipe"


def _figures(
    workload: str, arguments: Sequence[str], plan: str, ranks: int, environment: Mapping[str, str]
) -> tuple[RankFigures, ...]:
    """Run a few more steps, and read the account of each rank."""
    few = [*arguments, "--warm-up", "3", "--steps", "3"]
    with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
        start = (sys.executable, "-m", "ronde", "run", "--ranks", str(ranks), "--plan", plan, "--seed", "0")
        words = step_words(workload, few) if _by_steps(plan) else plain_words(workload, few)
        command = (*start, "--threads", "1", "--run-dir", folder, *words)
        run_together([Process(command=command, environment=environment)], timeout=_TIMEOUT)
        directory = RunDirectory(path=Path(folder), run_id="")
        return tuple(_figures_of(directory, rank) for rank in range(ranks))


def _by_steps(plan: str) -> bool:
    """Return whether the plan's schedule runs forward and backward together."""
    return expand(plan).compute.schedule not in (None, "gpipe")


def _figures_of(directory: RunDirectory, rank: int) -> RankFigures:
    summary, steps = read_summary(directory.summary(rank)), read_steps(steps_path(directory.path, rank))
    if summary is None or summary.memory is None or steps is None:
        raise BenchError(f"rank {rank} wrote no summary of its run to {directory.path.name} [R852]")
    usual = [each for each in steps.recent if each.step > 3] or list(steps.recent)
    return RankFigures(
        memory={str(kind): nbytes for kind, nbytes in summary.memory.peaks.items()},
        sent=int(statistics.median(sum(each.sent) / max(each.steps, 1) for each in usual)),
        waited=statistics.median(each.waited / max(each.ended - each.begun, 1) for each in usual),
    )

"""What `ronde bench parallel` has measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ronde.bench.columns import columns
from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.spread import Spread
from ronde.plan.compute import Schedule
from ronde.plan.schedule import bubble

__all__ = [
    "BY_HAND",
    "CONTEXT_BY_HAND",
    "KIND",
    "ONE_PROCESS",
    "TWICE_BY_HAND",
    "MeshRun",
    "ParallelReport",
    "RankFigures",
    "Span",
    "table",
]

KIND = "parallel"
ONE_PROCESS, BY_HAND, TWICE_BY_HAND = "one process", "tensor by hand", "zero3 and tensor by hand"
CONTEXT_BY_HAND = "context by hand"
_MIB = 2**20
_TITLES = (
    *("plan", "ms/step", "of one process", "of the ideal"),
    *("parameters MiB", "activations MiB", "sent MB", "waits", "bubble"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """What a rank did for a while in one step.

    Attributes:
        name: a phase ("forward"), or "wait".
        begin, end: milliseconds since the step's begin on the rank that began first.
    """

    name: str
    begin: float
    end: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankFigures:
    """One rank.

    Attributes:
        memory: bytes at their peak, by kind.
        sent: bytes that it handed over in a usual step.
        waited: its share of a usual step in which it waited for others.
        timeline: of one step; empty where that was not looked at.
    """

    memory: Mapping[str, int]
    sent: int
    waited: float
    timeline: tuple[Span, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeshRun:
    """One contender.

    Attributes:
        name: its plan, `ONE_PROCESS`, or one by hand: `BY_HAND`, `TWICE_BY_HAND`, `CONTEXT_BY_HAND`.
        ways: into how many parts its mesh cuts the work.
        stages, micro_batches, schedule: of its pipeline; one stage without one.
        step_seconds: the mean step of each round.
        ranks: none for what is not ronde's.
    """

    name: str
    ways: int
    step_seconds: tuple[float, ...]
    stages: int = 1
    micro_batches: int = 1
    schedule: Schedule = "gpipe"
    ranks: tuple[RankFigures, ...] = ()

    @property
    def ideal(self) -> float:
        """Of one process's step: an equal share, and the bubble of its schedule."""
        return 1 / (1 - self.bubble) / self.ways

    @property
    def bubble(self) -> float:
        """The share of a step for which a stage has nothing to do in its schedule."""
        return float(bubble(self.stages, self.micro_batches, self.schedule))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ParallelReport:
    """One invocation of `ronde bench parallel`.

    Attributes:
        parameters: of the model.
        refused: plans that this version does not run.
    """

    machine: Machine
    workload: str
    parameters: int
    results: tuple[MeshRun, ...]
    refused: tuple[str, ...] = ()

    def to_json(self) -> str:
        return written(KIND, self)


def table(report: ParallelReport) -> str:
    """A row for each contender, under a line that says on what."""
    machine = report.machine
    heading = (
        f"{report.workload}, {report.parameters / 1e6:.1f} M parameters, one thread for each process, on "
        f"{machine.cpu}, {machine.cores} cores, torch {machine.torch}, load {machine.load} before"
    )
    rows = [_row(report, each) for each in report.results]
    lines = [heading, "", columns([_TITLES, *rows])]
    if report.refused:
        lines += ["", f"not in this version: {', '.join(report.refused)}"]
    return "\n".join(lines)


def _row(report: ParallelReport, run: MeshRun) -> tuple[str, ...]:
    median = Spread.of(run.step_seconds).median
    ratio = _of_one_process(report, run)
    compared = ("", "") if ratio is None else (f"{ratio:.3f}", f"{ratio / run.ideal:.2f}")
    if not run.ranks:
        return (run.name, f"{median * 1e3:.0f}", *compared, "", "", "", "", "")
    most = {
        kind: max(rank.memory.get(kind, 0) for rank in run.ranks) for kind in ("parameters", "activations")
    }
    return (
        run.name,
        f"{median * 1e3:.0f}",
        *compared,
        f"{most['parameters'] / _MIB:.1f}",
        f"{most['activations'] / _MIB:.0f}",
        f"{max(rank.sent for rank in run.ranks) / 1e6:.1f}",
        f"{max(rank.waited for rank in run.ranks):.0%}",
        f"{run.bubble:.0%}" if run.stages > 1 else "",
    )


def _of_one_process(report: ParallelReport, run: MeshRun) -> float | None:
    """The median ratio of its step to that of one process, round by round."""
    base = next((each for each in report.results if each.name == ONE_PROCESS), None)
    if base is None or base is run:
        return None
    pairs = zip(run.step_seconds, base.step_seconds, strict=True)
    return Spread.of([own / other for own, other in pairs]).median

"""Rows and notes of the comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.dlperf.cases import CASES, Case
from benchmarks.dlperf.frameworks import FRAMEWORKS, OURS
from ronde.bench.report import Quantity, Result
from ronde.bench.rounds import ROUNDING, ratios

__all__ = ["QUANTITIES", "Measured", "Run", "notes_of", "rows_of", "same_training"]

QUANTITIES = {
    "one process": Quantity(unit="samples/s"),
    "two processes": Quantity(unit="samples/s", drawn=True),
    "speed-up": Quantity(unit="x", spread=True, drawn=True),
    "ronde over it": Quantity(unit="x", spread=True),
    "loss apart": Quantity(),
    "on two": Quantity(),
}
_NOTES = (
    "one, two processes: samples/s of the global batch, median of the rounds; all have the same threads "
    "for each process. speed-up: two over one within a round. ronde over it: on two, within a round",
    "loss apart: the largest distance of a step's loss from ronde's on one process, as a part of it, on one "
    "process and on two; all start from the same weights and see the same batches, without dropout",
)
_LOCAL = (
    "on two processes ronde normalizes with the statistics of the global batch, as one process does, and the "
    "others with those of each process's rows"
)
_HOROVOD = (
    "Horovod itself cannot be had from wheels: its last release, 0.28.1 of 2023, is source only. Its script "
    "runs on Horovod's interface of ronde"
)
_DATA_PARALLEL = (
    "DataParallel has one device on a CPU: on two processes it is one process with the threads of both"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: samples/s, the losses of all steps, and the framework's version."""

    speed: float
    losses: tuple[float, ...]
    version: str

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]], case: Case) -> Run:
        """Return the means over the processes of a run."""
        seconds = fmean(sum(each["seconds"][case.warm_up :]) for each in lines)
        losses = tuple(map(fmean, zip(*(each["losses"] for each in lines), strict=True)))
        return cls(speed=case.batch * case.steps / seconds, losses=losses, version=lines[0]["version"])


@dataclasses.dataclass(kw_only=True, slots=True)
class Measured:
    """Runs of a framework on one and two processes, or a reason."""

    workload: str
    framework: str
    one: list[Run] = dataclasses.field(default_factory=list)
    two: list[Run] = dataclasses.field(default_factory=list)
    reason: str = ""

    def add(self, one: Run, two: Run) -> None:
        """Add the runs of a round."""
        self.one.append(one)
        self.two.append(two)

    @property
    def version(self) -> str:
        """The framework's version; empty where none has run."""
        return self.one[0].version if self.one else ""


def apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest distance of two runs' losses, as a part of the first's.

    >>> apart([2.0, 4.0], [2.0, 5.0])
    0.25
    """
    return max(abs(one - other) / abs(one) for one, other in zip(ours, theirs, strict=True))


def same_training(ours: Measured, other: Measured, case: Case) -> None:
    """Give a framework that trained otherwise this as its reason.

    With statistics of its own rows only one process can train alike.
    """
    if other.reason:
        return
    runs = other.one[0], *([] if case.local_statistics else [other.two[0]])
    distance = max(apart(ours.one[0].losses, run.losses) for run in runs)
    if not distance <= ROUNDING:
        other.reason = f"it did not train alike: its losses are up to {distance:.1%} from ronde's"


def rows_of(found: Sequence[Measured], workloads: Sequence[str], missing: Mapping[str, str]) -> list[Result]:
    """Return a row for each framework and workload, empty where it has no figures."""
    ours = {each.workload: each for each in found if each.framework == OURS}
    rows: list[Result] = []
    for workload in workloads:
        for each in (one for one in found if one.workload == workload):
            samples = {} if each.reason else _samples(ours[workload], each)
            rows.append(_row(workload, each.framework, samples))
        rows += [_row(workload, name, {}) for name in missing if CASES[workload].has(name)]
    return rows


def _row(workload: str, name: str, samples: Mapping[str, tuple[float, ...]]) -> Result:
    title = FRAMEWORKS[name].title if samples else f"{FRAMEWORKS[name].title}: see below"
    return Result(labels={"workload": workload, "framework": title}, samples=samples)


def _samples(ours: Measured, each: Measured) -> dict[str, tuple[float, ...]]:
    one, two = (tuple(run.speed for run in runs) for runs in (each.one, each.two))
    first = ours.one[0].losses
    found = {
        "one process": one,
        "two processes": two,
        "speed-up": ratios(two, one),
        "loss apart": (apart(first, each.one[0].losses),),
        "on two": (apart(first, each.two[0].losses),),
    }
    if each is not ours:
        found["ronde over it"] = ratios([run.speed for run in ours.two], two)
    return found


def notes_of(
    found: Sequence[Measured], workloads: Sequence[str], against: Sequence[str], missing: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the lines below the table."""
    local = [name for name in workloads if CASES[name].local_statistics]
    return (
        *_NOTES,
        *(f"{name}: {_LOCAL}" for name in local),
        *([_HOROVOD] if "horovod" in against else []),
        *([_DATA_PARALLEL] if any(each.framework == "data-parallel" for each in found) else []),
        *(f"{FRAMEWORKS[name].title} cannot be had here: {reason}" for name, reason in missing.items()),
        *(
            f"{each.workload}, {FRAMEWORKS[each.framework].title}: {each.reason}"
            for each in found
            if each.reason
        ),
    )

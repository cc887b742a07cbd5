"""Figures of a run's ranks: their records, reduced one rank at a time.

A rank's records take 0.7 MB, so those of many ranks are never held together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ronde.report.run import RunState
from ronde.report.step_arrays import PARTS, Course, Records, parts_of, read_course
from ronde.trace.pace import Pace
from ronde.trace.step_file import ROUTES, steps_path

__all__ = ["LossCurve", "RankFigures", "RunFigures", "figures_of", "loss_curve", "reduced"]

Array = np.ndarray[Any, Any]

LOSS_POINTS = 400
COLUMNS = 120
SHOWN_STEPS = 12
_RECENT_S = 10.0


class LossCurve(NamedTuple):
    """Losses that the script read, in groups of steps.

    Attributes:
        step: last step of each group.
        mean, low, high: of its finite losses; those of steps that share a record are a mean already.
        broken: first step whose loss is not finite; None if all are.
    """

    step: Array
    mean: Array
    low: Array
    high: Array
    broken: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankFigures:
    """One rank's figures.

    Attributes:
        ended: end of its last record, in nanoseconds by the clock of the launcher's host; 0 without records.
        spent: seconds of the whole run by `PARTS`.
        recent: seconds of the last steps by `PARTS`.
        usual: seconds of a mean step by `PARTS`, without the first step.
        pace: rates of its steady part; None without one.
        steps_per_second, samples_per_second: rates of the last seconds; 0.0 before the second step.
        peak: largest bytes of the process; `resident` and `device` are the last ones.
        collectives, last, late: as in `StepRecord`, summed, in seconds.
        sent: bytes by `ROUTES`.
        over_time: seconds by `PARTS` in each column of the run's time.
        memory: largest bytes in each column, of the device if there is one; NaN before the first record.
        steps: its last records.
        folded: largest number of steps that share a record.
    """

    ended: int
    spent: Array
    recent: Array
    usual: Array
    pace: Pace | None
    steps_per_second: float
    samples_per_second: float
    peak: int
    resident: int
    device: int
    collectives: int
    last: int
    late: float
    sent: tuple[int, ...]
    over_time: Array
    memory: Array
    steps: Records
    folded: int

    @property
    def waited(self) -> float:
        """Seconds in which it waited for others."""
        return float(self.spent[PARTS.index("communication")])

    @property
    def came_last(self) -> float:
        """Share of its collectives to which it came last of its host."""
        return self.last / max(1, self.collectives)

    def routes(self) -> Mapping[str, int]:
        """Bytes by route, without unused ones."""
        return {route: nbytes for route, nbytes in zip(ROUTES, self.sent) if nbytes}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunFigures:
    """Figures of a run.

    Attributes:
        edges: bounds of the columns, in seconds since the run's beginning.
        ranks: figures of `RunState.ranks`, in the same order.
        done: samples and steps of the first rank in each column.
        loss: losses of the first rank.
    """

    edges: Array
    ranks: tuple[RankFigures, ...]
    done: Array
    loss: LossCurve

    @property
    def seconds(self) -> float:
        """Duration of the run until its last record."""
        return float(self.edges[-1])


def figures_of(run: RunState) -> RunFigures:
    """Read and reduce the records of all ranks."""
    begun = run.begun
    main = read_course(steps_path(run.path, run.ranks[0].rank if run.ranks else 0))
    first = main.whole
    offset = run.ranks[0].steps.offset if run.ranks else 0
    # The last record of a rank ends later than its last step; the first rank's says by how much.
    ends = [
        *(first["ended"][-1:] + offset).tolist(),
        *(rank.steps.since + rank.steps.offset for rank in run.ranks),
    ]
    edges = np.linspace(0, max([begun + 1, *ends]) - begun, max(1, min(COLUMNS, len(first))) + 1)
    counted = np.stack((first["samples"], first["steps"])).astype(float)
    return RunFigures(
        edges=edges / 1e9,
        ranks=tuple(
            _of_course(
                main if place == 0 else read_course(steps_path(run.path, rank.rank)),
                rank.steps.offset,
                edges + begun,
            )
            for place, rank in enumerate(run.ranks)
        ),
        done=_by_column(first, counted, edges + begun - offset),
        loss=loss_curve(first),
    )


def _of_course(course: Course, offset: int, edges: Array) -> RankFigures:
    return reduced(course.whole, course.recent, edges - offset, offset=offset)


def reduced(whole: Records, recent: Records, edges: Array, *, offset: int = 0) -> RankFigures:
    """Reduce the records of one rank.

    Args:
        edges: bounds of the columns, in nanoseconds of the rank's clock.
        offset: nanoseconds to be added for the clock of the launcher's host.
    """
    parts = parts_of(whole)
    steady = _steady(whole)
    count = max(1, int(whole["steps"][steady].sum()))
    speeds = _rates(recent)
    on_device = len(whole) > 0 and whole["device"][-1] > 0
    return RankFigures(
        ended=int(whole["ended"][-1]) + offset if len(whole) else 0,
        spent=parts.sum(axis=1),
        recent=parts_of(recent).sum(axis=1),
        usual=parts[:, steady].sum(axis=1) / count,
        pace=_pace(whole[steady], parts[:, steady]),
        steps_per_second=speeds[0],
        samples_per_second=speeds[1],
        peak=int(whole["resident"].max(initial=0)),
        resident=int(whole["resident"][-1]) if len(whole) else 0,
        device=int(whole["device"][-1]) if len(whole) else 0,
        collectives=int(whole["collectives"].sum()),
        last=int(whole["last"].sum()),
        late=float(whole["late"].sum()) / 1e9,
        sent=tuple(whole["sent"].sum(axis=0).tolist()),
        over_time=_by_column(whole, parts, edges),
        memory=_most(whole, whole["device" if on_device else "resident"], edges),
        steps=recent[-SHOWN_STEPS:].copy(),
        folded=int(whole["steps"].max(initial=1)),
    )


def loss_curve(records: Records, most: int = LOSS_POINTS) -> LossCurve:
    """Group the losses of a course by steps, in at most about `most` groups."""
    read = records[records["losses"] > 0]
    finite = np.isfinite(read["loss"])
    broken = None if finite.all() else int(read["step"][~finite][0])
    read = read[finite]
    if not len(read):
        nothing = np.empty(0)
        return LossCurve(nothing, nothing, nothing, nothing, broken)
    taken = np.cumsum(np.maximum(1, read["steps"]))
    group = np.ceil(taken * most / taken[-1]) if taken[-1] > most else taken
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    ends = np.append(starts[1:], len(read)) - 1
    count = np.add.reduceat(read["losses"], starts)
    mean = np.add.reduceat(read["loss"] * read["losses"], starts) / count
    low, high = (function.reduceat(read["loss"], starts) for function in (np.minimum, np.maximum))
    return LossCurve(read["step"][ends].astype(float), mean, low, high, broken)


def _steady(records: Records) -> slice:
    """Return the place of records after the first step, up to the last step."""
    steps = records["steps"]
    # Only the time after the last step is a record without steps.
    end = len(steps) - 1 if len(steps) and steps[-1] == 0 else len(steps)
    return slice(1 if end > 1 and steps[0] == 1 else 0, end)


def _pace(records: Records, parts: Array) -> Pace | None:
    """Return the pace of a course's steady part; None if it took no time."""
    seconds = float((records["ended"] - records["begun"]).sum()) / 1e9
    if seconds <= 0:
        return None
    return Pace(
        seconds=seconds,
        steps=int(records["steps"].sum()),
        samples=int(records["samples"].sum()),
        data=float(parts[PARTS.index("data")].sum()),
        waited=float(parts[PARTS.index("communication")].sum()),
    )


def _rates(recent: Records) -> tuple[float, float]:
    """Return the steps and samples per second of the last seconds."""
    if not len(recent) or recent["step"][-1] < 2:
        return 0.0, 0.0
    late = recent[recent["begun"] >= recent["ended"][-1] - _RECENT_S * 1e9]
    late = late if len(late) else recent[-1:]
    seconds = (late["ended"][-1] - late["begun"][0]) / 1e9
    return float(late["steps"].sum() / seconds), float(late["samples"].sum() / seconds)


def _by_column(records: Records, values: Array, edges: Array) -> Array:
    """Divide counts of records among columns by time; an array of values by columns."""
    if not len(records):
        return np.zeros((len(values), len(edges) - 1))
    begun, ended = records["begun"], records["ended"]
    sums = np.zeros((len(values), len(records) + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    # Up to each edge: records that have ended, and a part of the one that goes on.
    over = np.searchsorted(ended, edges, "right")
    open_ = np.minimum(over, len(records) - 1)
    share = np.clip((edges - begun[open_]) / (ended[open_] - begun[open_]), 0, 1) * (over < len(records))
    return np.diff(sums[:, over] + share * values[:, open_])


def _most(records: Records, values: Array, edges: Array) -> Array:
    """Return the largest value in each column.

    A column without a record has the value before it.
    """
    if not len(records):
        return np.full(len(edges) - 1, math.nan)
    last = np.searchsorted(records["begun"], edges[1:], "left") - 1
    first = np.minimum(np.searchsorted(records["ended"], edges[:-1], "right"), np.maximum(last, 0))
    bounds = np.stack((first, np.maximum(last, 0) + 1), axis=1).ravel()
    found = np.maximum.reduceat(np.append(values, 0).astype(float), bounds)[::2]
    return np.where(last < 0, math.nan, found)

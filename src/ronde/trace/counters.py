"""Counts of one rank during its script: steps, samples, data time, sharded calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ronde.trace.heartbeat import Vitals
from ronde.trace.pace import Pace
from ronde.trace.progress import Pulse
from ronde.trace.recorder import TraceRecorder
from ronde.trace.step_clock import StepClock

__all__ = ["Tally"]


class Tally:
    """Plain counters, updated where things happen; an update takes a microsecond at most.

    **Samples** are rows of training batches, each batch once. A batch is counted at the first call of a
    module in training mode, with gradients on, after a loader delivered it; further modules, backwards and
    optimizers of the same batch add nothing, and evaluation is not counted. When all optimizers have stepped
    and no loader has delivered since, the batch is used once more, and counts once more. Where training does
    not read a loader, a batch begins after each backward, but inside a step (`LBFGS`) after the step. Of
    several loaders read in step (`zip`) the rows of the first call count. Where a module sees other rows than
    the loader has put together (the nodes of graphs, the words of texts), and where none is called before an
    optimizer steps, the loader's count.

    Attributes:
        steps: steps of all optimizers since this start.
        before: steps in the checkpoint from which the run was resumed; observers see the sum of both.
        samples: see above.
        data_ns: nanoseconds in which the script waited for a loader's next batch.
        sharded: number of sharded calls of modules of each class.
        pulse: progress for the launcher; only rank 0 has one.
        vitals: signs of life of this rank for other processes.
        clock: clock that divides the time of a step.
        recorder: recorder of steps, where it is set.
        waited: nanoseconds that this rank has waited for others so far.
    """

    __slots__ = (
        "_begun",
        "_counted",
        "_delivered",
        "_first",
        "_fresh",
        "_from_loader",
        "_in_step",
        "_last",
        "_optimizers",
        "_owed",
        "_rows",
        "_stepped",
        "before",
        "begun_ns",
        "clock",
        "data_ns",
        "pulse",
        "recorder",
        "samples",
        "sharded",
        "steps",
        "vitals",
        "waited",
    )

    def __init__(self, pulse: Pulse | None = None) -> None:
        self.begun_ns = perf_counter_ns()
        self.steps = self.before = 0
        self.samples = 0
        self.data_ns = 0
        self.sharded: dict[str, int] = {}
        self.pulse = pulse
        self.vitals: Vitals | None = None
        self.clock = StepClock()
        self.recorder: TraceRecorder | None = None
        # The next call is on another batch; a loader has delivered one without a call of a module on it.
        self._fresh = True
        self._delivered = False
        self._rows: dict[int, None] = {}  # rows of batches delivered since, in order
        self._counted = (0, 0)  # rows of a module's last call, and the number that was counted for it
        # Of the batch that was counted last: where it came from, and which optimizers have stepped since.
        self._from_loader = False
        self._stepped: set[int] = set()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_step = False
        self._owed = False
        self.waited: Callable[[], int] = _nobody
        self._begun = self._mark()
        self._first: tuple[int, int, int, int, int] | None = None
        self._last = self._begun

    def begin(self) -> None:
        """Start the counts, as the script starts."""
        self.begun_ns = perf_counter_ns()
        self._begun = self._mark()
        if self.recorder is not None:
            self.recorder.begin()

    def deliver(self, spent_ns: int, rows: int | None = None) -> None:
        """Count a batch from a loader, and the nanoseconds waited for it.

        `rows`: the size of the batch, if known.
        """
        self.data_ns += spent_ns
        self._fresh = self._delivered = True
        if rows is not None:
            self._rows[rows] = None

    def train_on(self, rows: int) -> None:
        """Count a training call of a module on a batch of `rows` rows."""
        if self._fresh:
            self._counted = rows, rows if rows in self._rows else next(iter(self._rows), rows)
            self._count(self._counted[1])
        elif self._from_loader and self._all_stepped():
            known, counted = self._counted
            self._count(counted if rows == known else rows)

    def evaluate(self) -> None:
        """Discard the delivered batch: a module was called in evaluation."""
        self._delivered = False
        self._rows.clear()

    def _count(self, rows: int) -> None:
        self.samples += rows
        self._from_loader = self._delivered
        self._fresh = self._delivered = False
        self._rows.clear()
        self._stepped.clear()

    def _all_stepped(self) -> bool:
        return bool(self._stepped) and all(id(each) in self._stepped for each in self._optimizers)

    def cut(self, name: str) -> None:
        """Count a sharded call of a module of this class."""
        self.sharded[name] = self.sharded.get(name, 0) + 1

    def backward(self) -> None:
        """Record the end of a backward."""
        if self._from_loader or self._delivered:
            return
        if self._in_step:
            self._owed = True
        else:
            self._fresh = True

    def know(self, optimizer: object) -> None:
        """Register an optimizer."""
        self._optimizers.add(optimizer)

    def begin_step(self) -> None:
        """Begin a step of an optimizer, which may compute the batch several times."""
        self._in_step = True

    def step(self, optimizer: object = None) -> None:
        """Count a step of an optimizer."""
        self.steps += 1
        self._in_step = False
        if self._delivered and self._fresh and self._rows:
            self._count(next(iter(self._rows)))
        self._stepped.add(id(optimizer))
        if self._owed:
            self._fresh, self._owed = True, False
        self._last = self._mark()
        if self._first is None:
            self._first = self._last
        if self.pulse is not None:
            self.pulse.beat(self.before + self.steps, self.samples)
        if self.vitals is not None:
            self.vitals.step(self.before + self.steps)
        self.clock.stepped(self.steps)
        if self.recorder is not None:
            self.recorder.stepped(self.before + self.steps, self.samples)

    def go_on_from(self, steps: int) -> None:
        """Restore the counts of a checkpoint made after `steps` steps."""
        self.before = steps - self.steps
        if self.vitals is not None:
            self.vitals.step(steps)
        if self.recorder is not None:
            self.recorder.go_on_from(self.before)

    def step_beside(self) -> None:
        """Count a step in another thread of the script, without its samples."""
        self.steps += 1

    def pace(self) -> Pace:
        """Return the pace of the run's steady part, or of all before two steps."""
        if self._first is None or self._last[0] <= self._first[0]:
            return _between(self._begun, self._mark())
        return _between(self._first, self._last)

    def _mark(self) -> tuple[int, int, int, int, int]:
        return perf_counter_ns(), self.steps, self.samples, self.data_ns, self.waited()


def _between(first: tuple[int, int, int, int, int], last: tuple[int, int, int, int, int]) -> Pace:
    ns, steps, samples, data, waited = (after - before for before, after in zip(first, last, strict=True))
    return Pace(seconds=max(1, ns) / 1e9, steps=steps, samples=samples, data=data / 1e9, waited=waited / 1e9)


def _nobody() -> int:
    return 0

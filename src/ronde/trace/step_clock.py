"""Time of a step, divided into activities, measured in some steps only.

Measuring costs time, so one step out of several is measured.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from math import fsum
from threading import get_ident

# Bound at import: the module's own are replaced for scripts.
from time import perf_counter_ns, thread_time_ns

__all__ = ["Activity", "StepClock", "StepTimes", "is_looked_at", "undisturbed"]

# By then models have been observed, gradients lie in buckets and caches are filled.
_SETTLED = 14
# Distance between measured steps, larger later on. The numbers are primes, so that a script with several
# optimizers in turn is measured in the steps of each.
_EVERY = 7
_LATER, _EVERY_LATER = 150, 31
# Number of kept steps, the latest ones, when a long run has its usual speed.
_KEPT = 64
# Smallest number of steps in the mean.
_FEWEST = 3
# Longest time per element of an operation on a model's output, which passes over its elements once or twice.
_ELEMENT_NS = 100


class Activity:
    """Parts of a step; plain numbers, quicker than members of an enumeration.

    SCRIPT: all else, including work that every rank does in full.
    OWN: ronde's own code.
    MODEL: models on this rank's rows, forward and backward.
    ROWS: reading this rank's samples.
    """

    SCRIPT, OWN, MODEL, ROWS = range(4)


_PARTS = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Seconds that a step took on one rank.

    Attributes:
        whole: seconds from one optimizer step to the next.
        waited: seconds in collectives, until other ranks had arrived and bytes were there.
        own, model, rows: seconds in each `Activity`, without waiting.
        halted: seconds in which the rank neither waited for others nor ran: other programs had its core, or
            it slept.
    """

    whole: float
    waited: float
    own: float
    model: float
    rows: float
    halted: float


class StepClock:
    """Clock that divides the time of some steps among parts; one per rank.

    While `armed`, code that changes from one part into another reports it. If an exception prevents the
    report of an end, the rest of that step is counted wrongly, but not the next step.

    Attributes:
        armed: whether this step is measured.
    """

    __slots__ = (
        "_begun",
        "_kept",
        "_part",
        "_ran_before",
        "_since",
        "_spent",
        "_thread",
        "_waited",
        "_waited_before",
        "armed",
    )

    def __init__(self) -> None:
        self.armed = False
        self._waited: Callable[[], int] | None = None
        self._thread = 0
        self._kept: deque[StepTimes] = deque(maxlen=_KEPT)
        self._part = Activity.SCRIPT
        self._spent = [0] * _PARTS
        self._begun = self._since = self._waited_before = self._ran_before = 0

    def start(self, waited: Callable[[], int]) -> None:
        """Measure steps of this thread from now on.

        Args:
            waited: nanoseconds that this rank has waited for others so far.
        """
        self._waited, self._thread = waited, get_ident()

    def stepped(self, steps: int) -> None:
        """Record that an optimizer has stepped; `steps` are done."""
        if self._waited is None:
            return
        if self.armed:
            self._kept.append(self._times(self._waited()))
        self.armed = is_looked_at(steps)
        if self.armed:
            self._begin(self._waited())

    def enter(self, part: int) -> int:
        """Enter a part; return the one before."""
        before = self._part
        if self._waited is None or get_ident() != self._thread:
            return before
        now = perf_counter_ns() - self._waited()
        self._spent[before] += now - self._since
        self._part, self._since = part, now
        return before

    def claim(self, part: int) -> None:
        """Assign the time since the last change to `part`, and stay in it."""
        self._part = part if get_ident() == self._thread else self._part
        self.enter(part)

    def operation(self) -> tuple[int, int]:
        """Begin an operation on a model's output; the result is for `operated`."""
        before = self.enter(Activity.OWN)
        return before, self._spent[Activity.OWN]

    def operated(self, begun: tuple[int, int], elements: int) -> None:
        """End an operation on `elements` elements of this rank's rows.

        The time that these can have taken is assigned to the model.
        """
        before, own = begun
        self.enter(before)
        share = min(self._spent[Activity.OWN] - own, elements * _ELEMENT_NS)
        self._spent[Activity.OWN] -= share
        self._spent[Activity.MODEL] += share

    def times(self) -> StepTimes | None:
        """Return the times of an undisturbed step; None if no step was measured."""
        return undisturbed(self._kept)

    def _begin(self, waited: int) -> None:
        self._spent = [0] * _PARTS
        self._part, self._waited_before = Activity.SCRIPT, waited
        self._ran_before, self._begun = thread_time_ns(), perf_counter_ns()
        self._since = self._begun - waited

    def _times(self, waited: int) -> StepTimes:
        self.enter(Activity.SCRIPT)
        whole, ran = perf_counter_ns() - self._begun, thread_time_ns() - self._ran_before
        waited -= self._waited_before
        return StepTimes(
            whole=whole / 1e9,
            waited=waited / 1e9,
            own=self._spent[Activity.OWN] / 1e9,
            model=self._spent[Activity.MODEL] / 1e9,
            rows=self._spent[Activity.ROWS] / 1e9,
            halted=max(0, whole - waited - ran) / 1e9,
        )


def is_looked_at(steps: int) -> bool:
    """Return whether the step after `steps` steps is measured.

    >>> [steps for steps in range(200) if is_looked_at(steps)]
    [14, 21, 28, 35, 42, 49, 56, 63, 70, 77, 84, 91, 98, 105, 112, 119, 126, 133, 140, 147, 155, 186]
    """
    return steps >= _SETTLED and steps % (_EVERY if steps < _LATER else _EVERY_LATER) == 0


def undisturbed(steps: Sequence[StepTimes]) -> StepTimes | None:
    """Average the steps with the least waiting for other ranks or for a core.

    None without any steps. Steps are not chosen by their total time, because batches may differ in size.
    """
    if not steps:
        return None
    quiet = sorted(steps, key=lambda step: step.waited + step.halted)[: max(_FEWEST, len(steps) // 4)]
    names = [field.name for field in dataclasses.fields(StepTimes)]
    return StepTimes(**{name: fsum(getattr(step, name) for step in quiet) / len(quiet) for name in names})

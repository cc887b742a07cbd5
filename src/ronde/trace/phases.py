"""Phase of a rank at every moment of every step.

A change of phase costs a microsecond, and a step has a few changes. `StepClock` measures some steps in
detail; this measures all steps, in coarser parts.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import get_ident

# Bound at import: the module's own is replaced for scripts.
from time import perf_counter_ns

__all__ = ["PHASES", "Phase", "Phases"]


class Phase:
    """Phases of a step: plain numbers, which are faster than an enumeration's members.

    OTHER: the script itself, between all of these.
    OPTIMIZER: an optimizer's step.
    DATA: the loader's next batch.
    FORWARD: the outermost call of a module.
    BACKWARD: backward, and recomputation in it.
    UNMEASURED: short steps between two that are measured.
    """

    OTHER, OPTIMIZER, DATA, FORWARD, BACKWARD, UNMEASURED = range(6)


PHASES = ("other", "optimizer", "data", "forward", "backward")
"""Names of the measured phases, by number."""

Change = Callable[[int, int, int], object]
"""Hears of a phase that is over: its number, and when it began and ended, in nanoseconds."""


class Phases:
    """Time of one thread, divided among phases; one per rank.

    Waiting for other ranks belongs to no phase: it is subtracted from the one in which it happens. Times are
    by the monotonic clock, which all processes of a host share.

    Args:
        waited: nanoseconds that this rank has waited for others so far; None: it never waits.
        show: callback for each phase that begins.

    Attributes:
        current: the phase of the measured thread; OTHER in any other process.
        begun: beginning of the current phase.
        net: the same time, less all waiting before it.
        spent: nanoseconds in each phase before the current one, by `Phase`.
        on_change: callback for each phase that ends, while it is set.
        resume_at: end of the pause, by the monotonic clock.
    """

    __slots__ = (
        "__weakref__",
        "_show",
        "_thread",
        "_waited",
        "begun",
        "current",
        "net",
        "on_change",
        "resume_at",
        "spent",
    )

    def __init__(self, waited: Callable[[], int] | None, show: Callable[[int], object]) -> None:
        self._waited = waited
        self._show = show
        self._thread = get_ident()
        self.spent = [0] * (Phase.UNMEASURED + 1)
        self.current = Phase.OTHER
        self.on_change: Change | None = None
        self.resume_at = 0
        self.begun = perf_counter_ns()
        self.net = self.begun - (0 if waited is None else waited())
        _all.add(self)

    def here(self) -> bool:
        """Return whether the calling thread is the one that is measured."""
        return get_ident() == self._thread

    def enter(self, phase: int) -> int:
        """Enter a phase; return the one before."""
        before = self.current
        if get_ident() != self._thread:
            return before
        now = perf_counter_ns()
        net = now if self._waited is None else now - self._waited()
        self.spent[before] += net - self.net
        self.net = net
        self.current = phase
        self._show(phase)
        if self.on_change is not None:
            self.on_change(before, self.begun, now)
        self.begun = now
        return before

    def pause(self, until: int) -> None:
        """Leave the phases unmeasured up to a moment of the monotonic clock, in nanoseconds."""
        self.enter(Phase.UNMEASURED)
        self.resume_at = until

    def paused(self) -> bool:
        """Return whether phases are unmeasured now.

        Past the end of a pause measuring resumes in OTHER.
        """
        if self.current != Phase.UNMEASURED:
            return False
        if perf_counter_ns() < self.resume_at:
            return True
        self.enter(Phase.OTHER)
        return False

    def end(self) -> None:
        """Stop measuring for good."""
        self._thread = 0
        self.on_change = None


_all: weakref.WeakSet[Phases] = weakref.WeakSet()


def _fall_silent() -> None:
    """Stop measuring in a forked process, such as a loader's worker.

    The records belong to its parent.
    """
    for phases in _all:
        phases._thread = 0


os.register_at_fork(after_in_child=_fall_silent)

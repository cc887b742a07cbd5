"""Announcement of checkpoints to ranks that do not wait for one another.

Each is saved at its own time.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep  # bound here: the module's own is replaced for scripts

from ronde.checkpoint.schedule import Schedule
from ronde.comm.process_group import Comm

__all__ = ["AnnouncedCuts"]

_LOOK_S = 0.05
_ENDING, _OVER = "cuts/ending", "cuts/over"


class AnnouncedCuts:
    """Announcement by the store that all ranks are saved where their next steps begin.

    A rank that arrives at the end of its script instead has no state to resume from: then no rank is saved
    any more. It stays until rank 0 has ended, to answer the announcements.

    Args:
        comm: group of all ranks.
        schedule: says when a checkpoint is due, by rank 0's clock and steps.
        standing: returns this rank's steps, those at the newest checkpoint, and whether it has been asked to
            end.
        end: callback that ends the run once a rank has finished; its argument is whether all ranks take part
            in the call.
        settle: returns when servers have answered this rank.
        ahead: steps between the announcement and the first step at which ranks stop. Ranks are at most that
            far ahead of the slowest one, so none waits for a rank that has already stopped.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: Schedule,
        standing: Callable[[], tuple[int, int, bool]],
        end: Callable[[bool], None],
        *,
        settle: Callable[[], None],
        ahead: int,
    ) -> None:
        self._comm, self._schedule, self._standing, self._end = comm, schedule, standing, end
        self._settle, self._ahead = settle, ahead
        self._count, self._target, self._is_over = 0, -1, False

    def is_due(self) -> bool:
        """Return whether this rank stops here, where its next step begins."""
        steps, saved, ending = self._standing()
        if self._target < 0:
            self._announce(steps, saved, ending) if self._comm.rank == 0 else self._hear(ending)
        return 0 <= self._target <= steps

    def come(self) -> bool:
        """Meet the others at the step where this rank is to be saved. A collective.

        Returns:
            whether all ranks are saved.
        """
        self._settle()
        return self._meet(ended=False)

    def end(self) -> None:
        """Answer announcements at the end of this rank's script."""
        store = self._comm.store
        if self._comm.rank == 0:
            self._answer_at_end()
            store.set(_OVER, "")
            return
        while self._target >= 0 or not store.check([_OVER]):
            if self._target < 0:
                self._hear(self._standing()[2])
            self._answer_at_end()
            sleep(_LOOK_S)

    def _answer_at_end(self) -> None:
        if self._target >= 0:
            self._meet(ended=True)
            if self._schedule.is_ending:
                self._end(True)

    @property
    def _name(self) -> str:
        return f"cuts/{self._count}"

    def _announce(self, steps: int, saved: int, ending: bool) -> None:
        ending = ending or self._comm.store.check([_ENDING])
        if ending or (self._schedule.is_time(steps, saved) and not self._is_over):
            self._schedule.is_ending, self._target = ending, steps + self._ahead
            self._comm.store.set(self._name, f"{self._target} {int(ending)}")

    def _hear(self, ending: bool) -> None:
        store = self._comm.store
        if ending:
            store.set(_ENDING, "")
        if store.check([self._name]):
            target, ends = store.get(self._name).split()
            self._schedule.is_ending, self._target = bool(int(ends)), int(target)
        elif ending and store.check([_OVER]):
            self._end(False)

    def _meet(self, *, ended: bool) -> bool:
        self._target, self._count = -1, self._count + 1
        comes = self._comm.votes([ended]) == [0]
        self._is_over = not comes
        return comes

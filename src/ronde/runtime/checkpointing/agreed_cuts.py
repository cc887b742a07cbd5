"""Agreement of averaging ranks on the average after which they are saved."""

from __future__ import annotations

from collections.abc import Callable

from ronde.checkpoint.schedule import Schedule
from ronde.comm.process_group import Comm

__all__ = ["AgreedCuts"]


class AgreedCuts:
    """Agreement on checkpoints at averages, when no message is on its way.

    Each rank is saved after the same average. It arrives there at its own time, and the others wait for it.
    One that arrives at the end of its script instead has no state to resume from: then no rank is saved.

    Args:
        comm: group of all ranks.
        schedule: says when a checkpoint is due.
        standing: returns this rank's steps, those at the newest checkpoint, and whether it has been asked to
            end.
        end: callback that ends the run, if a rank has finished its script, once all know it.

    Attributes:
        agreed: whether this rank will be saved where its next step begins.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: Schedule,
        standing: Callable[[], tuple[int, int, bool]],
        end: Callable[[], None],
    ) -> None:
        self._comm, self._schedule, self._standing, self._end = comm, schedule, standing, end
        self.agreed = False

    def meet(self) -> None:
        """Agree, where all ranks have made the same steps. A collective."""
        steps, saved, ending = self._standing()
        self.agreed = self.agreed or self._schedule.is_due(steps, saved, ending=ending)

    def wishes(self) -> tuple[bool, bool]:
        """Return whether this rank wants a checkpoint, and whether it is to end."""
        steps, saved, ending = self._standing()
        return self._comm.rank == 0 and self._schedule.is_time(steps, saved), ending

    def hear(self, wanting: int, ending: int, ended: int) -> None:
        """Receive the counts of ranks that want a checkpoint, are ending, or have ended.

        Ranks that have ended are at the end of their script.
        """
        self._schedule.is_ending = ending > 0
        if not ended:
            self.agreed = wanting > 0 or ending > 0
        elif ending:
            self._end()

    def is_due(self) -> bool:
        """Return whether this rank stops here, where its next step begins."""
        return self.agreed

    def come(self) -> bool:
        """Meet the others at the step where this rank is to be saved. A collective.

        Returns:
            whether all ranks are saved.
        """
        self.agreed = False
        return self._comm.votes([False]) == [0]

    def end(self) -> None:
        """Cancel an agreed checkpoint on all ranks, at the end of this rank's script."""
        if self.agreed:
            self.agreed = False
            self._comm.votes([True])
            if self._schedule.is_ending:
                self._end()

"""Has ranks that average their models agree on the average after which they are saved."""

from __future__ import annotations

from collections.abc import Callable

from ronde.checkpoint.schedule import Schedule
from ronde.comm.process_group import Comm

__all__ = ["AgreedCuts"]


class AgreedCuts:
    """Agrees where ranks average, so that each is saved after the same average: nothing is on the way then.

    Each rank comes to the place at its own time, and the others wait for it there. One that comes to the end
    of its script instead has nothing to go on from: then nobody is saved.

    Args:
        comm: to all ranks.
        schedule: says when a checkpoint is due.
        standing: this rank's steps, those at the newest checkpoint, and whether it has been asked to end.
        end: ends the run, of which a rank has come to its end, when all hear of it.

    Attributes:
        agreed: this rank is to be saved where its next step begins.
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
        """Whether this rank wants a checkpoint, and whether it is to end."""
        steps, saved, ending = self._standing()
        return self._comm.rank == 0 and self._schedule.is_time(steps, saved), ending

    def hear(self, wanting: int, ending: int, ended: int) -> None:
        """Hear how many ranks want a checkpoint, are to end, and have come to the end of their script."""
        self._schedule.is_ending = ending > 0
        if not ended:
            self.agreed = wanting > 0 or ending > 0
        elif ending:
            self._end()

    def is_due(self) -> bool:
        """Whether this rank, whose next step begins, stops here."""
        return self.agreed

    def come(self) -> bool:
        """This rank is where it is to be saved; whether all others come there. A collective."""
        self.agreed = False
        return self._comm.votes([False]) == [0]

    def end(self) -> None:
        """This rank has come to the end of its script: what is agreed upon is not done, by anybody."""
        if self.agreed:
            self.agreed = False
            self._comm.votes([True])
            if self._schedule.is_ending:
                self._end()

"""Schedule of checkpoints and of a run's end, at equal steps on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic  # bound here: the module's own is replaced for scripts

import torch

from ronde.checkpoint.cadence import Cadence

__all__ = ["Schedule"]

# Approximate seconds between agreements of ranks; a run that was asked to end continues for at most that time
# and one step.
_ASK_EVERY_S = 1.0
_MOST_STEPS = 1000


class Schedule:
    """Agreement of all ranks on checkpoints, at steps chosen by rank 0's clock.

    Args:
        add: the sum over ranks of a vector of integers, int64.
        leads: whether this is rank 0.

    Attributes:
        is_ending: whether all ranks know that some rank has been asked to end.
    """

    def __init__(self, cadence: Cadence, add: Callable[[torch.Tensor], torch.Tensor], *, leads: bool) -> None:
        self.is_ending = False
        self._cadence, self._add, self._leads = cadence, add, leads
        self._ask_at = 1
        self._asked, self._asked_at = 0, monotonic()
        self._due_at = monotonic() + cadence.seconds

    def is_due(self, step: int, saved: int, *, ending: bool) -> bool:
        """Return whether to make a checkpoint at this step, alike on all ranks.

        Args:
            step: steps so far.
            saved: the step of the newest checkpoint.
            ending: whether this rank has been asked to end.
        """
        due = bool(self._cadence.steps) and step - saved >= self._cadence.steps
        if step >= self._ask_at:
            wait, is_time = self._ahead(step) if self._leads else (0, False)
            wait, times, endings = self._add(torch.tensor([wait, is_time, ending])).tolist()
            self._ask_at = step + wait
            self.is_ending = endings > 0
            due = due or times > 0
        return due or self.is_ending

    def is_time(self, step: int, saved: int) -> bool:
        """Return whether a checkpoint is due by this rank's own count and clock.

        Each time is reported once.
        """
        due = bool(self._cadence.steps) and step - saved >= self._cadence.steps
        return self._has_struck() or due

    def _has_struck(self) -> bool:
        now, seconds = monotonic(), self._cadence.seconds
        is_time = bool(seconds) and now >= self._due_at
        if is_time:
            self._due_at = now + seconds
        return is_time

    def _ahead(self, step: int) -> tuple[int, bool]:
        """Return the steps until ranks ask again, and whether a checkpoint is due."""
        now, seconds = monotonic(), self._cadence.seconds
        a_step = (now - self._asked_at) / max(1, step - self._asked)
        self._asked, self._asked_at = step, now
        is_time = self._has_struck()
        left = max(self._due_at - now, 0.0) if seconds else _ASK_EVERY_S
        wait = int(min(_ASK_EVERY_S, left) / max(a_step, 1e-6))
        return max(1, min(wait, _MOST_STEPS)), is_time

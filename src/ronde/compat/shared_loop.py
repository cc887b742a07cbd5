"""A loop of one thread that a thread which waits for its outcome runs meanwhile, so that none is woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["SharedLoop"]

# How long the loop's own thread stays away after somebody has waited, for who waits next. A script that waits
# for each operation comes back much sooner; what others submit meanwhile is late by this much, once.
_AWAY_S = 0.001


class SharedLoop:
    """Runs `step` in one thread at a time.

    Args:
        step: waits for the next event, and deals with it.
        is_over: asked before each step.

    Attributes:
        turn: held by the thread that runs it.
    """

    def __init__(self, step: Callable[[], None], is_over: Callable[[], bool]) -> None:
        self._step, self._is_over = step, is_over
        self.turn = threading.Lock()
        self._was_helped = False

    def run(self) -> None:
        """In the loop's own thread, until it is over."""
        while not self._is_over():
            if self._was_helped:
                self._was_helped = False
                time.sleep(_AWAY_S)
                continue
            with self.turn:
                if not self._is_over():
                    self._step()

    def help(self, is_done: Callable[[], bool]) -> None:
        """Run it in this thread until `is_done()`, unless another thread has its turn."""
        self._was_helped = True
        if not self.turn.acquire(blocking=False):
            return
        try:
            while not is_done() and not self._is_over():
                self._step()
        finally:
            self.turn.release()

"""Which workers are there: one that has gone, or was killed, must not keep those waiting who go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ronde.launch.linux_process import is_alive

__all__ = ["Presence"]

_LOOK_EVERY_S = 0.5
_SILENCE_S = 60.0


class Presence:
    """What is known of the workers of one run.

    A worker of this host has gone when its process has; one of another host when it was not heard of for a
    minute. Whoever speaks again is there again.

    Args:
        workers: how many there are.
        known: who has been there when this server was killed; one of them may have died meanwhile.
    """

    def __init__(
        self, workers: int, known: Iterable[int] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._processes: dict[int, int] = {}
        self._heard = dict.fromkeys(known, clock())
        self._left: set[int] = set()
        self._looked = clock()

    @property
    def there(self) -> set[int]:
        """Workers who have not gone; those who have not come yet count as there."""
        return set(range(self._workers)) - self._left

    def met(self, worker: int, process: int | None) -> None:
        """A worker has said hello, from a process of this host or another one."""
        self.heard(worker)
        self._processes.pop(worker, None)
        if process is not None:
            self._processes[worker] = process

    def heard(self, worker: int) -> None:
        """A worker has asked for something."""
        self._heard[worker] = self._clock()
        self._left.discard(worker)

    def left(self, worker: int) -> None:
        """A worker has said that it goes."""
        self._left.add(worker)

    def look(self) -> set[int]:
        """Who has gone since; looks now and then only."""
        now = self._clock()
        if now - self._looked < _LOOK_EVERY_S:
            return set()
        self._looked = now
        gone = {worker for worker in self.there if self._is_gone(worker, now)}
        self._left |= gone
        return gone

    def _is_gone(self, worker: int, now: float) -> bool:
        process = self._processes.get(worker)
        if process is not None:
            return not is_alive(process)
        return worker in self._heard and now - self._heard[worker] > _SILENCE_S

"""Presence of workers: others must not wait for a worker that is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ronde.launch.linux_process import is_alive

__all__ = ["Presence"]

_LOOK_EVERY_S = 0.5
_SILENCE_S = 60.0


class Presence:
    """The last sign of life of each worker of a run.

    A worker on this host is lost when its process has ended; one on another host after a minute of silence. A
    worker that speaks again is present again.

    Args:
        workers: number of workers.
        known: workers that were present when this server was killed; they may have died since.
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
        """The workers that are not lost.

        Workers that have not connected yet count as present.
        """
        return set(range(self._workers)) - self._left

    def met(self, worker: int, process: int | None) -> None:
        """Record a worker's HELLO; `process` is its pid on this host or None."""
        self.heard(worker)
        self._processes.pop(worker, None)
        if process is not None:
            self._processes[worker] = process

    def heard(self, worker: int) -> None:
        """Record a sign of life of a worker."""
        self._heard[worker] = self._clock()
        self._left.discard(worker)

    def left(self, worker: int) -> None:
        """Record that a worker has left."""
        self._left.add(worker)

    def look(self) -> set[int]:
        """Return workers lost since the last look; looks at most twice a second."""
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

"""Backend with an all-reduce of ronde's on a thread; another backend does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from ronde.comm.lane import Lane, Task
from ronde.comm.reduce_scatter import reduce_scatter_by_all_reduce

__all__ = ["BackgroundBackend", "BackgroundTask"]


class BackgroundTask(Protocol):
    """A component that waits for peers."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that it waits for a peer."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


class BackgroundBackend:
    """Backend that sums by an algorithm of ours, on the CPU.

    Args:
        name: the algorithm's name, for the user.
        all_reduce: function that sums a flat tensor over all ranks in place, and returns when that is done.
        rest: the backend of everything else.
        parts: components of `all_reduce`: each gets time limits, and is closed before `rest`.
    """

    on_cuda = False
    blocks = False

    def __init__(
        self,
        name: str,
        all_reduce: Callable[[torch.Tensor], None],
        rest: Any,
        parts: Sequence[BackgroundTask] = (),
    ) -> None:
        self.name = name
        self._sum = all_reduce
        self._rest = rest
        self._parts = tuple(parts)
        self._lane = Lane("ronde-all-reduce")

    def all_reduce(self, flat: torch.Tensor) -> Task:
        return self._lane.start(lambda: self._sum(flat))

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        return self._rest.all_gather(out, flat)

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        return self._rest.broadcast(flat, source)

    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> Any:
        return self._rest.share(rank, parts)

    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> Any:
        return reduce_scatter_by_all_reduce(self, rank, out, pieces)

    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> Any:
        return self._rest.all_to_all(outs, pieces, longest)

    def send(self, flat: torch.Tensor, to: int) -> Any:
        return self._rest.send(flat, to)

    def receive(self, flat: torch.Tensor, source: int) -> Any:
        return self._rest.receive(flat, source)

    def set_timeout(self, timeout: timedelta) -> None:
        for part in (*self._parts, self._rest):
            part.set_timeout(timeout)

    def close(self) -> None:
        self._lane.close()
        for part in (*self._parts, self._rest):
            part.close()

"""Backend with an all-reduce of ronde's on a thread; another backend does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from ronde.comm.all_gather import share_by_messages
from ronde.comm.lane import Lane, Task
from ronde.comm.reduce_scatter import reduce_scatter_by_all_reduce

__all__ = ["BackgroundBackend", "BackgroundTask"]

# From so many ranks on, rows up to so many bytes are gathered by a sum: a backend's ring has a message in
# sequence for each rank, and trees only as many as the logarithm.
_MANY_ROWS = 32
_SHORT_ROW = 16 << 10


class BackgroundTask(Protocol):
    """A component that waits for peers."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of waiting for a peer."""
        ...

    def close(self) -> None:
        """Release the component's resources."""
        ...


class BackgroundBackend:
    """Backend that sums by an algorithm of ours, on the CPU.

    Args:
        name: the algorithm's name, for the user.
        all_reduce: function that sums a flat tensor over all ranks in place, and returns when that is done.
        rest: the backend of everything else.
        parts: components of `all_reduce`: each gets time limits, and is closed before `rest`.
        own_row: the number of this rank, if many ranks gather short rows by `all_reduce`; None if `rest`
            gathers them.
    """

    on_cuda = False
    blocks = False

    def __init__(
        self,
        name: str,
        all_reduce: Callable[[torch.Tensor], None],
        rest: Any,
        parts: Sequence[BackgroundTask] = (),
        own_row: int | None = None,
    ) -> None:
        self.name = name
        self._sum = all_reduce
        self._rest = rest
        self._parts = tuple(parts)
        self._own_row = own_row
        self._lane = Lane("ronde-all-reduce")

    def all_reduce(self, flat: torch.Tensor) -> Task:
        return self._lane.start(lambda: self._sum(flat))

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        own_row = self._own_row
        if own_row is None or len(out) < _MANY_ROWS or flat.numel() > _SHORT_ROW:
            return self._rest.all_gather(out, flat)
        return self._lane.start(lambda: self._gather_by_sum(out, flat, own_row))

    def _gather_by_sum(self, out: torch.Tensor, flat: torch.Tensor, own_row: int) -> None:
        """Gather rows of bytes by a sum: each rank adds zeros to others' rows."""
        out[own_row].copy_(flat)  # `flat` may be that row
        out[:own_row].zero_()
        out[own_row + 1 :].zero_()
        self._sum(out.view(-1))

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        return self._rest.broadcast(flat, source)

    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> Any:
        return share_by_messages(self, rank, parts)

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

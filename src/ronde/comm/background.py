"""A backend whose all-reduce is one of ours, while the caller goes on; all else is another backend's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ronde.comm.lane import Lane, Task

__all__ = ["BackgroundBackend"]


class BackgroundBackend:
    """Sums by an algorithm of ours, on the CPU.

    Args:
        name: of the algorithm, for the user.
        all_reduce: sums a flat tensor over all ranks in place, and returns when that is done.
        rest: carries everything else.
        ends: what is to be closed before `rest`.
    """

    on_cuda = False
    blocks = False

    def __init__(
        self,
        name: str,
        all_reduce: Callable[[torch.Tensor], None],
        rest: Any,
        ends: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._sum = all_reduce
        self._rest = rest
        self._ends = ends
        self._lane = Lane("ronde-all-reduce")

    def all_reduce(self, flat: torch.Tensor) -> Task:
        return self._lane.start(lambda: self._sum(flat))

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        return self._rest.all_gather(out, flat)

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        return self._rest.broadcast(flat, source)

    def set_timeout(self, timeout: timedelta) -> None:
        self._rest.set_timeout(timeout)

    def close(self) -> None:
        self._lane.close()
        if self._ends is not None:
            self._ends()
        self._rest.close()

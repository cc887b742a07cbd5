"""Backend of one rank by itself: every collective is complete at once, without traffic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch

from ronde.comm.reduce_scatter import end_to_end

__all__ = ["SingleRank"]


class SingleRank:
    """The backend of a single rank; see `Backend`."""

    name = "nothing"
    blocks = False

    def __init__(self, *, on_cuda: bool) -> None:
        self.on_cuda = on_cuda

    def all_reduce(self, flat: torch.Tensor) -> None:
        """No-op: the sum over one rank is in place."""

    @torch.no_grad()
    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> None:
        out.view(-1).copy_(flat)

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        """No-op: the only rank has the value."""

    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        """No-op: every part is this rank's."""

    @torch.no_grad()
    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> None:
        out.copy_(end_to_end(pieces[rank], out))

    @torch.no_grad()
    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> None:
        outs[0].copy_(pieces[0])

    def send(self, flat: torch.Tensor, to: int) -> None:
        """No-op: one rank has no peer."""

    def receive(self, flat: torch.Tensor, source: int) -> None:
        """No-op: one rank has no peer."""

    def set_timeout(self, timeout: timedelta) -> None:
        """No-op: one rank never waits."""

    def close(self) -> None:
        """No-op: one rank has no connections."""

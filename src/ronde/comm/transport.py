"""Transport of flat tensors between two ranks, for algorithms made of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

__all__ = ["Handle", "TorchTransport", "Transport"]


class Handle(Protocol):
    """A message under way."""

    def wait(self) -> Any:
        """Return when the tensor may be used again, after sending or arrival."""
        ...


class Transport(Protocol):
    """Messages among some ranks, which are numbered from zero here.

    Messages between two ranks under one tag arrive in order. The receiver knows the size.

    Attributes:
        rank, world_size: this rank's number among them, and theirs.
    """

    rank: int
    world_size: int

    def send(self, flat: torch.Tensor, to: int, tag: int = 0) -> Handle:
        """Start sending a contiguous tensor."""
        ...

    def receive(self, flat: torch.Tensor, source: int, tag: int = 0) -> Handle:
        """Start receiving into a contiguous tensor."""
        ...


class TorchTransport:
    """Messages of a process group (Gloo's), among some of its ranks.

    Args:
        group: torch's process group.
        ranks: the group's ranks that take part, in order; this one is among them.
        rank: the number of this rank in the group.
    """

    def __init__(self, group: Any, ranks: Sequence[int], rank: int) -> None:
        self._group: Any = group
        self._ranks = tuple(ranks)
        self.rank = self._ranks.index(rank)
        self.world_size = len(self._ranks)

    def send(self, flat: torch.Tensor, to: int, tag: int = 0) -> Handle:
        return self._group.send([flat], self._ranks[to], tag)

    def receive(self, flat: torch.Tensor, source: int, tag: int = 0) -> Handle:
        return self._group.recv([flat], self._ranks[source], tag)

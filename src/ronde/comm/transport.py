"""What carries flat tensors from one rank to another, for the algorithms that are made of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

__all__ = ["Handle", "TorchTransport", "Transport"]


class Handle(Protocol):
    """A message under way."""

    def wait(self) -> Any:
        """Return when the tensor may be used again: it has been sent, or it has arrived."""
        ...


class Transport(Protocol):
    """Messages among some ranks, which are numbered from zero here.

    What one rank sends another under one tag arrives in order. The receiver knows the size.

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
    """A process group's own messages (Gloo's), among some of its ranks.

    Args:
        group: torch's process group.
        ranks: the group's ranks that take part, in order; this one is among them.
        rank: this rank in the group.
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

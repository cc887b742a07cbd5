"""A micro-batch's way through the chunks of a model on one rank, a turn for each.

Forward of a model cannot stop in its midst, so each turn carries it out from its beginning. What earlier
turns have come to on this rank, units' outputs and what was received, they have kept; code between units
computes of that again what it needs. Each turn's graph ends where an earlier turn's began, so that each goes
back by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import torch

__all__ = ["ChunkTurn", "TurnEnds"]


class TurnEnds(BaseException):
    """The next unit of this rank is one of a later turn. No script's `except Exception` holds it up."""


@dataclasses.dataclass(slots=True)
class ChunkTurn:
    """One turn.

    Attributes:
        chunk: the turn's.
        chunks: of the model on each rank.
        kept: by place in the call a tensor of an earlier turn; of all turns of a micro-batch.
        ended: tensors of this turn that later ones use, each with what stands for it there.
        now: the chunk to which the model's code has come.
    """

    chunk: int
    chunks: int
    kept: dict[Hashable, torch.Tensor]
    ended: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)
    now: int = 0

    @property
    def is_past(self) -> bool:
        """Whether what the code has come to was an earlier turn's."""
        return self.now < self.chunk

    def enter(self, chunk: int) -> None:
        """A unit of this rank is called.

        Raises:
            TurnEnds: it is a later turn's.
        """
        if chunk > self.chunk:
            raise TurnEnds
        self.now = chunk

    def keep(self, place: Hashable, tensor: torch.Tensor) -> None:
        """Have a tensor stand for itself in later turns, without its graph."""
        if self.chunk + 1 < self.chunks:
            leaf = self.kept[place] = tensor.detach().requires_grad_(tensor.requires_grad)
            if leaf.requires_grad:
                self.ended.append((tensor, leaf))

    def gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Tensors of this turn, and what later turns have added to their gradients."""
        found = [(tensor, leaf.grad) for tensor, leaf in self.ended]
        used: list[Any] = [(tensor, gradient) for tensor, gradient in found if gradient is not None]
        return [tensor for tensor, _ in used], [gradient for _, gradient in used]

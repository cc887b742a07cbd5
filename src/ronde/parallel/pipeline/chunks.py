"""Turns of a micro-batch through the chunks of a model on one rank.

Forward of a model cannot stop in its midst, so each turn runs it from its beginning. Outputs of units and
received tensors of earlier turns are kept; code between units recomputes from them. Each turn's graph ends
where an earlier turn's began, so each turn runs backward by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import torch

__all__ = ["ChunkTurn", "TurnEnds"]


class TurnEnds(BaseException):
    """The next unit of this rank belongs to a later turn. No script's `except Exception` catches it."""


@dataclasses.dataclass(slots=True)
class ChunkTurn:
    """One turn of a micro-batch: a run up to the end of a chunk.

    Attributes:
        chunk: index of the turn's chunk.
        chunks: number of chunks of the model on each rank.
        kept: tensors of this micro-batch's earlier turns, by place in the call.
        ended: tensors of this turn that later ones use, each with its replacement there.
        now: index of the chunk that the model's code has reached.
    """

    chunk: int
    chunks: int
    kept: dict[Hashable, torch.Tensor]
    ended: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)
    now: int = 0

    @property
    def is_past(self) -> bool:
        """True while the code repeats an earlier turn's part."""
        return self.now < self.chunk

    def enter(self, chunk: int) -> None:
        """Record the call of a unit of this rank.

        Raises:
            TurnEnds: the unit belongs to a later turn.
        """
        if chunk > self.chunk:
            raise TurnEnds
        self.now = chunk

    def keep(self, place: Hashable, tensor: torch.Tensor) -> None:
        """Keep a tensor for later turns, without its graph."""
        if self.chunk + 1 < self.chunks:
            leaf = self.kept[place] = tensor.detach().requires_grad_(tensor.requires_grad)
            if leaf.requires_grad:
                self.ended.append((tensor, leaf))

    def gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return tensors of this turn, with the gradients that later turns added."""
        found = [(tensor, leaf.grad) for tensor, leaf in self.ended]
        used: list[Any] = [(tensor, gradient) for tensor, gradient in found if gradient is not None]
        return [tensor for tensor, _ in used], [gradient for _, gradient in used]

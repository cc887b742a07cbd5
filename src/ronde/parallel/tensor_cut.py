"""How a parameter is cut over the ranks of a tensor group: along one of its dimensions, each rank a block.

A fused matrix, such as the one that makes queries, keys and values at once, is several matrices behind one
another, and each rank has its block of each. So a rank's elements are no single run in memory: they have an
order of their own, in which those of rank 0 come first, then those of rank 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.sync.gradient_parts import Ranges
from ronde.tensor.layout import Layout

__all__ = ["CutRanges", "TensorCut"]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorCut:
    """A cut of a contiguous tensor.

    Attributes:
        dim: the dimension that is cut.
        ranks: into as many blocks.
        fused: matrices behind one another along it, each of which is cut.
    """

    dim: int
    ranks: int
    fused: int = 1

    def divides(self, shape: Sequence[int]) -> bool:
        """Whether all ranks get equal blocks."""
        return shape[self.dim] > 0 and shape[self.dim] % (self.ranks * self.fused) == 0

    def layout(self, shape: Sequence[int]) -> Layout:
        """Where the blocks lie; a block is one row."""
        return Layout(
            self.dim, self.ranks, self.ranks, self.fused, shape[self.dim] // (self.ranks * self.fused)
        )

    def shape_of_block(self, shape: Sequence[int]) -> list[int]:
        block = list(shape)
        block[self.dim] //= self.ranks
        return block

    def ranges(self, shape: Sequence[int]) -> CutRanges:
        """Each rank's elements, in the order of this cut."""
        size = math.prod(shape) // self.ranks
        return CutRanges(self, tuple((rank * size, (rank + 1) * size) for rank in range(self.ranks)))

    def block(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's block of something of the whole's shape."""
        return self.layout(whole.shape).take(whole, rank)

    def in_order(self, whole: torch.Tensor) -> torch.Tensor:
        """All elements, flat, in the order of this cut; a copy."""
        blocks = [self.block(whole, rank).reshape(-1) for rank in range(self.ranks)]
        return torch.cat(blocks)

    def put_back(self, elements: torch.Tensor, whole: torch.Tensor) -> None:
        """Write what `in_order` gives to where it lies in the whole."""
        block = self.shape_of_block(whole.shape)
        parts = [part.view(block) for part in elements.chunk(self.ranks)]
        whole.copy_(self.layout(whole.shape).assemble(parts))


class CutRanges(tuple["tuple[int, int] | None", ...]):
    """`Ranges` of elements in the order of a cut."""

    cut: TensorCut

    def __new__(cls, cut: TensorCut, spans: Ranges) -> Any:
        made = super().__new__(cls, spans)
        made.cut = cut
        return made

    def shape_of_block(self, shape: Sequence[int], rank: int) -> list[int]:
        return self.cut.shape_of_block(shape)

    def block(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        return self.cut.block(whole, rank)

    def complete(self, comm: Comm, part: torch.Tensor, whole: torch.Tensor) -> None:
        self.cut.put_back(comm.all_gather(part).view(-1), whole)

"""A cut of a tensor along one dimension, as Megatron-LM cuts columns and rows.

A fused matrix, such as the one that makes queries, keys and values at once, is several matrices after one
another, and each rank has its block of each. So a rank's elements are not one run in memory. They are a run
in the order of the cut, in which the elements of rank 0 come first, then those of rank 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from ronde.tensor.layout import Layout

__all__ = ["DimCut"]


@dataclasses.dataclass(frozen=True, slots=True)
class DimCut:
    """A cut of a contiguous tensor into equal blocks.

    Attributes:
        dim: the dimension that is cut.
        ranks: number of blocks.
        fused: number of matrices after one another along `dim`; each of them is cut.
    """

    dim: int
    ranks: int
    fused: int = 1

    def divides(self, shape: Sequence[int]) -> bool:
        """Return whether blocks of a tensor of this shape are equal and not empty."""
        return shape[self.dim] > 0 and shape[self.dim] % (self.ranks * self.fused) == 0

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout of the blocks, one row each."""
        return Layout(
            self.dim, self.ranks, self.ranks, self.fused, shape[self.dim] // (self.ranks * self.fused)
        )

    def shape_of_block(self, shape: Sequence[int]) -> list[int]:
        block = list(shape)
        block[self.dim] //= self.ranks
        return block

    def spans(self, shape: Sequence[int]) -> list[tuple[int, int]]:
        """Return the span of each block, in the order of the cut."""
        size = math.prod(shape) // self.ranks
        return [(rank * size, (rank + 1) * size) for rank in range(self.ranks)]

    def block(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """Return one block of a tensor, a view if possible."""
        return self.layout(whole.shape).take(whole, rank)

    def in_order(self, whole: torch.Tensor) -> torch.Tensor:
        """Copy all elements, flat, into the order of the cut."""
        blocks = [self.block(whole, rank).reshape(-1) for rank in range(self.ranks)]
        return torch.cat(blocks)

    def put_back(self, elements: torch.Tensor, whole: torch.Tensor) -> None:
        """Write elements in the order of the cut to their places in `whole`."""
        block = self.shape_of_block(whole.shape)
        parts = [part.view(block) for part in elements.chunk(self.ranks)]
        whole.copy_(self.layout(whole.shape).assemble(parts))

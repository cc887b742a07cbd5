"""Who has which rows of a matrix: contiguous ranges of whole rows, one for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ronde.parallel.division import Division, in_equal_parts
from ronde.sync.gradient_parts import Ranges

__all__ = ["RowDivision", "first_rows"]


def first_rows(rows: int, world_size: int) -> list[int]:
    """The first row of each rank, and behind them the number of rows; ranks differ by one at most."""
    return [rows * rank // world_size for rank in range(world_size + 1)]


class RowDivision(Division):
    """Remembers, by matrix, each rank's elements; they are whole rows.

    Matrices are contiguous, so that rows one after the other are one run of elements.
    """

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size, in_equal_parts)

    def split(self, members: Sequence[torch.Tensor]) -> list[Ranges]:
        return [self._by_rows(tensor) for tensor in members]

    def _by_rows(self, tensor: torch.Tensor) -> Ranges:
        rows, dim = tensor.shape
        spans = pairwise(first_rows(rows, self._world_size))
        return tuple((first * dim, last * dim) if first < last else None for first, last in spans)

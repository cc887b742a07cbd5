"""Contiguous rows of a matrix for each rank, as recommenders cut embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.split import even_parts
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec

__all__ = ["rows"]


def rows(ranks: int) -> Partition:
    """Create a partition of matrices into equal ranges of rows, one per rank.

    Matrices are contiguous, so rows are one run of elements.
    """

    def split(members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        return [_of_matrix(each.shape[0], each.shape[1], ranks) for each in members]

    return Partition(split)


def _of_matrix(count: int, dim: int, ranks: int) -> ShardSpec:
    spans = even_parts(count, ranks)
    spans = even_parts(count, ranks)
    return ShardSpec(
        tuple((first * dim, last * dim) if first < last else None for first, last in spans), row=dim
    )

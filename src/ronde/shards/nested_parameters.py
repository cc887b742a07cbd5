"""Blocks of parameters, cut once more over their replicas (ZeRO-3 in a block).

A parameter is in shards over all ranks, for the script; its block is in the same shards over the ranks that
have it, for the model. So a model gathers blocks among replicas only, those of experts among other ranks than
those of matrices. Parameters without blocks are sharded over the ranks with other rows, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final

import torch

from ronde.shards.sharded_parameters import ShardedParameters
from ronde.sync.gradient_shards import Span

__all__ = ["NestedParameters"]


@final
class NestedParameters:
    """Shards that several groups of ranks gather, each its own.

    Args:
        outer: the parameters, in shards over all ranks.
        whole: parameters without blocks, in shards over rows, with blocks that are cut over these.
        blocks: stores of other blocks, in the same shards over the replicas of each.
        leaf: the block of a parameter; None for one that has none.
    """

    def __init__(
        self,
        outer: ShardedParameters,
        whole: ShardedParameters,
        blocks: Sequence[ShardedParameters],
        leaf: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        self._outer, self._whole, self._blocks, self._leaf = outer, whole, blocks, leaf

    def own(self, tensor: torch.Tensor) -> torch.Tensor | None:
        own = self._outer.own(tensor)
        return self._whole.own(tensor) if own is None else own

    def span(self, tensor: torch.Tensor) -> Span:
        return (self._whole if self._outer.own(tensor) is None else self._outer).span(tensor)

    def begin_update(self) -> None:
        for each in (self._outer, self._whole, *self._blocks):
            each.begin_update()

    def end_update(self, tensors: Iterable[torch.Tensor]) -> None:
        tensors = list(tensors)
        self._outer.end_update(tensors)
        leaves = [each if (leaf := self._leaf(each)) is None else leaf for each in tensors]
        for each in (self._whole, *self._blocks):
            each.end_update(leaves)

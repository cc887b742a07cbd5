"""Blocks of parameters, cut once more over their replicas (ZeRO-3 in a block).

A parameter is in shards over all ranks, for the script; its block is in the same shards over the ranks that
have it, for the model. So a model gathers blocks among replicas only. Parameters that are in no blocks are in
shards over rows, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

import torch

from ronde.shards.sharded_parameters import ShardedParameters
from ronde.sync.gradient_shards import Span

__all__ = ["NestedParameters"]


@final
class NestedParameters:
    """Shards that two groups of ranks gather.

    Args:
        outer: the parameters, in shards over all ranks.
        inner: their blocks, in the same shards over the replicas of each, and parameters without blocks.
        leaf: the block of a parameter; None for one that has none.
    """

    def __init__(
        self,
        outer: ShardedParameters,
        inner: ShardedParameters,
        leaf: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        self._outer, self._inner, self._leaf = outer, inner, leaf

    def own(self, tensor: torch.Tensor) -> torch.Tensor | None:
        own = self._outer.own(tensor)
        return self._inner.own(tensor) if own is None else own

    def span(self, tensor: torch.Tensor) -> Span:
        return (self._inner if self._outer.own(tensor) is None else self._outer).span(tensor)

    def begin_update(self) -> None:
        self._outer.begin_update()
        self._inner.begin_update()

    def end_update(self, tensors: Iterable[torch.Tensor]) -> None:
        tensors = list(tensors)
        self._outer.end_update(tensors)
        self._inner.end_update([each if (leaf := self._leaf(each)) is None else leaf for each in tensors])

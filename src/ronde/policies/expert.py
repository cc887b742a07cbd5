"""The elements of a mixture's experts on the ranks over which these are spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ronde.policies.expert_structure import Mixture
from ronde.shards.dim_cut import DimCut
from ronde.shards.spec import ShardSpec, blocks, owned
from ronde.sync.gradient_hooks import has_hooks

__all__ = ["can_be_spread", "expert_specs", "matrix_spec"]


def expert_specs(mixture: Mixture, ranks: int) -> Iterator[tuple[torch.Tensor, ShardSpec]]:
    """The spec of each parameter of the experts: equally many experts on each rank, in their order."""
    for tensor, expert in mixture.parameters:
        if expert < 0:
            yield tensor, blocks(DimCut(0, ranks), tensor.shape)
        else:
            yield tensor, owned(expert * ranks // mixture.count, ranks, tensor.numel())


def matrix_spec(cut: DimCut, shape: Sequence[int], ranks: int) -> ShardSpec:
    """The spec of a matrix beside experts: the tensor groups among their ranks have the same blocks."""
    return ShardSpec(tuple(cut.spans(shape)) * (ranks // cut.ranks), cut)


def can_be_spread(mixture: Mixture) -> bool:
    """Whether one rank alone may have each expert: all ranks call the hooks of the script."""
    return all(_suits(tensor) for tensor, _ in mixture.parameters)


def _suits(tensor: Any) -> bool:
    hooked = bool(tensor._backward_hooks) or has_hooks(tensor)
    return bool(tensor.dim() and tensor.numel()) and tensor.is_contiguous() and not hooked

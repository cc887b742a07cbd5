"""The elements of a mixture's experts on the ranks over which these are spread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ronde.policies.expert_structure import Mixture
from ronde.shards.dim_cut import DimCut
from ronde.shards.spec import ShardSpec, blocks_of_stage, owned
from ronde.sync.gradient_hooks import has_hooks

__all__ = ["can_be_spread", "expert_specs"]


def expert_specs(
    mixture: Mixture, ranks: int, stage: int = 0, stages: int = 1
) -> Iterator[tuple[torch.Tensor, ShardSpec]]:
    """The spec of each parameter of the experts: equally many experts on each rank, in their order.

    Args:
        ranks: of each stage; those of a stage follow one another.
        stage: of so many, that of the mixture.
    """
    for tensor, expert in mixture.parameters:
        if expert < 0:
            cut = DimCut(0, ranks)
            yield tensor, blocks_of_stage(stage, stages, tensor.shape, ranks=ranks, cut=cut)
        else:
            owner = stage * ranks + expert * ranks // mixture.count
            yield tensor, owned(owner, stages * ranks, tensor.numel())


def can_be_spread(mixture: Mixture) -> bool:
    """Whether one rank alone may have each expert: all ranks call the hooks of the script."""
    return all(_suits(tensor) for tensor, _ in mixture.parameters)


def _suits(tensor: Any) -> bool:
    hooked = bool(tensor._backward_hooks) or has_hooks(tensor)
    return bool(tensor.dim() and tensor.numel()) and tensor.is_contiguous() and not hooked

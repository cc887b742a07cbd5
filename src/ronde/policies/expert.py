"""Shard specs of experts, spread over the ranks of an expert group."""

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
    """Yield a spec for each parameter of the experts, equally many experts per rank.

    Args:
        mixture: the mixture of experts; its experts go to ranks in their order.
        ranks: number of ranks of each stage; ranks of a stage are consecutive.
        stage: pipeline stage of the mixture.
        stages: number of pipeline stages.
    """
    for tensor, expert in mixture.parameters:
        if expert < 0:
            cut = DimCut(0, ranks)
            yield tensor, blocks_of_stage(stage, stages, tensor.shape, ranks=ranks, cut=cut)
        else:
            owner = stage * ranks + expert * ranks // mixture.count
            yield tensor, owned(owner, stages * ranks, tensor.numel())


def can_be_spread(mixture: Mixture) -> bool:
    """Return whether each expert may be owned by single ranks.

    They may not if the script has hooks on a parameter: all ranks call these.
    """
    return all(_suits(tensor) for tensor, _ in mixture.parameters)


def _suits(tensor: Any) -> bool:
    hooked = bool(tensor._backward_hooks) or has_hooks(tensor)
    return bool(tensor.dim() and tensor.numel()) and tensor.is_contiguous() and not hooked

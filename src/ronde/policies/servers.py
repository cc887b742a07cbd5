"""Shard specs over parameter servers: large tensors over all, small ones on one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ronde.policies.zero import in_equal_parts
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec

__all__ = ["over_servers"]


def over_servers(servers: int) -> Partition:
    """Create a partition of tensors into equal runs for servers.

    The rank itself comes last, without elements. Keys number the tensors in their order, the same on all
    ranks.
    """
    keys = itertools.count()

    def split(members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        sizes = [each.numel() for each in members]
        return [ShardSpec((*spans, None), key=next(keys)) for spans in in_equal_parts(sizes, servers)]

    return Partition(split)

"""Elements on parameter servers: large tensors over all of them, small ones together on one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ronde.policies.zero import in_equal_parts
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec

__all__ = ["over_servers"]


def over_servers(servers: int) -> Partition:
    """Cut tensors into equal runs for servers; the rank stands last, without elements.

    Keys count the tensors in the order in which they come, the same on all ranks.
    """
    keys = itertools.count()

    def split(members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        sizes = [each.numel() for each in members]
        return [ShardSpec((*spans, None), key=next(keys)) for spans in in_equal_parts(sizes, servers)]

    return Partition(split)

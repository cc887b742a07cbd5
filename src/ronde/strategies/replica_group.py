"""Replicas of blocks: they average gradients, and ZeRO divides state among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from ronde.comm.process_group import Comm
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.reducer import Reducer

__all__ = ["ReplicaGroup"]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Group of replicas, with its reducer and its shards.

    Attributes:
        comm: the group of the reducer.
        ranks: indices of its members among all ranks.
        reducer: reducer that averages gradients of their blocks.
        gradients: shards to which these are reduced; None where each member has whole gradients.
        leaves: store that gathers blocks that are cut once more; None where each member has its whole blocks.
    """

    comm: Comm
    ranks: Sequence[int]
    reducer: Reducer
    gradients: ReducedGradients | None
    leaves: ShardedParameters | None

    @property
    def divides(self) -> bool:
        """Return whether the group has several members to divide state among."""
        return self.comm.world_size > 1

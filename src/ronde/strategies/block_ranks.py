"""Process groups among which a mesh spreads blocks of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from ronde.comm.process_group import Comm
from ronde.policies.zero import MeshPosition
from ronde.tensor.context import Context

__all__ = ["BlockRanks"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockRanks:
    """Process groups among which blocks are spread.

    Attributes:
        rows: the reducer's group: ranks with the same blocks and other rows of the batch.
        group: ranks with other blocks and the same rows.
        everybody: all ranks.
        places: position of each rank.
        row_ranks: the ranks of `rows`, among all ranks.
        replica_group: reducer group of ranks with the same experts, where these are fewer than `rows`.
        gathering: the same ranks, for gathering experts in an order of its own; None where experts are whole.
        copies: positions of all ranks for parameters with the same blocks on ranks of `rows`, where these
            have other blocks of other parameters; None without such.
        sequences: the context in which values inside of models are cut too; None without.
    """

    rows: Comm
    group: Comm
    everybody: Comm
    places: Sequence[MeshPosition]
    row_ranks: Sequence[int]
    replica_group: Comm | None = None
    gathering: Comm | None = None
    copies: Sequence[MeshPosition] | None = None
    sequences: Context | None = None

    @property
    def replicas(self) -> list[int]:
        """Replicas of this rank's blocks, in the order of their group."""
        block = self.places[self.everybody.rank].block
        same = [rank for rank, place in enumerate(self.places) if place.block == block]
        return sorted(same, key=lambda rank: self.places[rank].replica)

"""A rank's place among all ranks and among those of its host."""

from __future__ import annotations

import dataclasses

__all__ = ["Place"]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Position and number of ranks, in all and on this host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @property
    def on_one_host(self) -> bool:
        return self.local_world_size == self.world_size

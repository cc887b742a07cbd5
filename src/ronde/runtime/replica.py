"""A replica: ranks that share one copy of a model, and train it together."""

from __future__ import annotations

import dataclasses

from ronde.cluster.mesh import Axis, MeshOfRanks
from ronde.launch.rank_config import RankConfig
from ronde.plan import Communication, Plan, Update

__all__ = ["ModelReplica"]

_INSIDE: tuple[Axis, ...] = ("pipeline", "context", "tensor")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelReplica:
    """One of several copies of a model.

    Attributes:
        config: configuration of this rank among all.
        ranks: ranks of the replica, among all ranks.
        same: the ranks that have the same blocks, one of each replica.
    """

    config: RankConfig
    ranks: tuple[int, ...]
    same: tuple[int, ...]

    @classmethod
    def of(cls, config: RankConfig, plan: Plan) -> ModelReplica:
        """Return the replica of this rank: of one rank if no model is cut."""
        mesh = MeshOfRanks.of(plan.for_ranks(config.place.world_size).mesh)
        ranks = mesh.members(config.place.rank, *_INSIDE)
        return cls(config=config, ranks=ranks, same=mesh.members(config.place.rank, "data"))

    @property
    def place(self) -> int:
        """Index of this replica."""
        return self.same.index(self.config.place.rank)

    @property
    def inside(self) -> RankConfig:
        """The configuration of this rank within the replica."""
        first = self.config.place.rank - self.config.place.local_rank
        here = [rank for rank in self.ranks if first <= rank < first + self.config.place.local_world_size]
        place = dataclasses.replace(
            self.config.place,
            rank=self.ranks.index(self.config.place.rank),
            world_size=len(self.ranks),
            local_rank=here.index(self.config.place.rank),
            local_world_size=len(here),
        )
        return RankConfig(run=dataclasses.replace(self.config.run, publish=0, checkpoint=""), place=place)

    def plan_inside(self, plan: Plan) -> Plan:
        """The plan that the ranks of the replica carry out together."""
        mesh = dataclasses.replace(plan.mesh, data=1)
        return dataclasses.replace(plan, mesh=mesh, communication=Communication(), update=Update())

"""The mesh: groups of ranks along each axis.

Ranks are numbered with `tensor` fastest, then `context`, `data` and `pipeline`: those that talk most are
neighbours, and share a host where one has several ranks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from ronde.plan.mesh import Mesh

__all__ = ["AXES", "Axis", "MeshOfRanks"]

Axis = Literal["pipeline", "data", "context", "tensor"]
AXES: tuple[Axis, ...] = ("pipeline", "data", "context", "tensor")
"""The slowest first."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeshOfRanks:
    """Degrees by axis; the number of ranks is their product."""

    degrees: tuple[int, ...]

    @classmethod
    def of(cls, mesh: Mesh) -> MeshOfRanks:
        """Make the mesh of a plan's degrees, with `data` known."""
        return cls((mesh.pipeline, mesh.data or 1, mesh.context, mesh.tensor))

    @property
    def ranks(self) -> int:
        return math.prod(self.degrees)

    def degree(self, axis: Axis) -> int:
        return self.degrees[AXES.index(axis)]

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Return the coordinate of `rank` along an axis."""
        place = AXES.index(axis)
        return rank // math.prod(self.degrees[place + 1 :]) % self.degrees[place]

    def members(self, rank: int, *axes: Axis) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` along these axes only, in order.

        >>> mesh = MeshOfRanks((1, 2, 1, 2))
        >>> mesh.members(1, "data"), mesh.members(1, "tensor"), mesh.members(1, "data", "tensor")
        ((1, 3), (0, 1), (0, 1, 2, 3))
        """
        # Not every rank is looked at: thousands of ranks ask this of each other as they start.
        members = [0]
        for axis, degree in zip(AXES, self.degrees, strict=True):
            own = self.coordinate(rank, axis)
            places = range(degree) if axis in axes else (own,)
            members = [before * degree + place for before in members for place in places]
        return tuple(members)

    def index(self, rank: int, *axes: Axis) -> int:
        """The place of `rank` among its `members` along these axes.

        >>> MeshOfRanks((1, 2, 1, 2)).index(3, "data")
        1
        """
        place = 0
        for axis in AXES:
            if axis in axes:
                place = place * self.degree(axis) + self.coordinate(rank, axis)
        return place

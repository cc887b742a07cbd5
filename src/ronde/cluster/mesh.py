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
        others: list[Axis] = [axis for axis in AXES if axis not in axes]
        return tuple(
            each
            for each in range(self.ranks)
            if all(self.coordinate(each, axis) == self.coordinate(rank, axis) for axis in others)
        )

"""Plans as arrays with an entry per candidate, so that NumPy costs them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ronde.plan import Mesh, Plan, expand
from ronde.plan.schedule import CHUNKS

__all__ = ["PLACEMENTS", "RECOMPUTES", "SCHEDULES", "Candidates", "Point", "kinds_of", "plan_of", "point_of"]

Ints = NDArray[np.int64]

# Formulas use the indices of these, so a new value is appended.
PLACEMENTS = ("replicated", "zero1", "zero2", "zero3", "central")
RECOMPUTES = ("none", "selective", "full")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")

# Entries of a table for each value up to which it replaces a sort.
_TABLE = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One candidate: degrees, micro-batches, and indices into PLACEMENTS, RECOMPUTES and SCHEDULES."""

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    micro_batches: int = 1
    placement: int = 0
    recompute: int = 0
    schedule: int = 1
    chunks: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """Arrays of one length, one for each field of `Point`."""

    data: Ints
    tensor: Ints
    pipeline: Ints
    context: Ints
    expert: Ints
    micro_batches: Ints
    placement: Ints
    recompute: Ints
    schedule: Ints
    chunks: Ints

    @classmethod
    def of(cls, points: Iterable[Sequence[int]]) -> Candidates:
        """Build candidates from rows of numbers in the order of the fields."""
        rows = np.array([tuple(point) for point in points], dtype=np.int64).reshape(-1, 10)
        return cls(*(np.ascontiguousarray(column) for column in rows.T))

    @classmethod
    def one(cls, point: Point) -> Candidates:
        return cls.of([dataclasses.astuple(point)])

    def __len__(self) -> int:
        return len(self.data)

    def take(self, chosen: NDArray[np.bool_] | Ints) -> Candidates:
        """Select candidates by index array or boolean mask."""
        return Candidates(*(getattr(self, field.name)[chosen] for field in dataclasses.fields(self)))

    def point(self, place: int) -> Point:
        return Point(*(int(getattr(self, field.name)[place]) for field in dataclasses.fields(self)))


def kinds_of(keys: Iterable[NDArray[np.int64] | NDArray[np.bool_]]) -> tuple[Ints, Ints]:
    """Return a place of each combination of keys, and the combination of each place.

    Args:
        keys: arrays of one length.

    >>> kinds_of([np.array([5, 5, 7]), np.array([1, 1, 1])])[1].tolist()
    [0, 0, 1]
    """
    packed, size = np.zeros((), dtype=np.int64), 1
    for key in keys:
        places, count = _numbered(key.astype(np.int64), int(key.max(initial=0)) + 1)
        packed, size = packed * count + places, size * count
    which, count = _numbered(packed, size)
    first = np.empty(count, dtype=np.int64)
    # The last of several assignments to a place stays.
    first[which[::-1]] = np.arange(len(which) - 1, -1, -1)
    return first, which


def _numbered(values: Ints, size: int) -> tuple[Ints, int]:
    """Return the rank of each value among all different ones, and their number.

    Args:
        size: a number above all values. A table of so many is quicker than a sort where it is small.
    """
    if size > _TABLE * len(values):
        found, which = np.unique(values, return_inverse=True)
        return which.reshape(-1), len(found)
    there = np.zeros(size, dtype=bool)
    there[values] = True
    return (np.cumsum(there) - 1)[values], int(np.count_nonzero(there))


def plan_of(point: Point, base: Plan) -> Plan:
    """Return the plan of a candidate.

    Keys that no candidate has are those of `base`, parameter servers among them.
    """
    schedule: Any = SCHEDULES[point.schedule] if point.pipeline > 1 else None
    named: Any = PLACEMENTS[point.placement]
    placement = named if base.state.placement in PLACEMENTS else base.state.placement
    recompute: Any = RECOMPUTES[point.recompute]
    return dataclasses.replace(
        base,
        mesh=Mesh(tensor=point.tensor, pipeline=point.pipeline, context=point.context, expert=point.expert),
        state=dataclasses.replace(base.state, placement=placement),
        compute=dataclasses.replace(
            base.compute,
            micro_batches=point.micro_batches,
            recompute=recompute,
            schedule=schedule,
        ),
    )


def point_of(plan_text: str, devices: int) -> Point:
    """Return the candidate that a plan names for this number of devices."""
    plan = expand(plan_text).for_ranks(devices)
    mesh = plan.mesh
    schedule = plan.compute.schedule or ("gpipe" if mesh.pipeline > 1 else "1f1b")
    placement = plan.state.placement
    return Point(
        data=mesh.data or devices // mesh.model_ranks,
        tensor=mesh.tensor,
        pipeline=mesh.pipeline,
        context=mesh.context,
        expert=mesh.expert,
        micro_batches=plan.compute.micro_batches,
        placement=PLACEMENTS.index(placement) if placement in PLACEMENTS else 0,
        recompute=RECOMPUTES.index(plan.compute.recompute),
        schedule=SCHEDULES.index(schedule),
        chunks=CHUNKS if schedule == "interleaved" else 1,
    )

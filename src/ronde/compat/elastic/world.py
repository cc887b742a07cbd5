"""Assignment of an elastic job's ranks to hosts, as pure functions."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

from ronde.cluster.host_list import HostSlots
from ronde.compat.place import JobPlace

__all__ = ["HostGroup", "RankAssignment", "World", "members_of", "share_out"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostGroup:
    """Ranks that were started together on one host, and fail together.

    Attributes:
        number: number of the start; a host that returns is a new unit.
        ranks: number of its ranks in use, which may only decrease.
        joined: first generation in which its ranks were connected; None: they do not have the job's state.
    """

    number: int
    host: str
    ranks: int
    joined: int | None = None

    @property
    def age(self) -> tuple[float, int]:
        """Return the sort key that puts the oldest unit first."""
        return (math.inf if self.joined is None else self.joined, self.number)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The members of one generation.

    Attributes:
        generation: number of the generation, from 1.
        members: host, unit and index in the unit, by rank. Ranks of a host are adjacent, and rank 0 belongs
            to the oldest unit, which has the state.
        addresses: address of a host for other hosts, if it differs from the one that its ranks know.
    """

    generation: int
    members: tuple[tuple[str, int, int], ...]
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def units(self) -> frozenset[int]:
        return frozenset(unit for _, unit, _ in self.members)

    def place_of(self, place: JobPlace) -> JobPlace | None:
        """Return a process's place in this generation; None if left out.

        Args:
            place: its place in the generation before, or from its launcher.
        """
        own = next((each for each in self.members if each[1:] == (place.unit, place.index)), None)
        if own is None:
            return None
        hosts = list(dict.fromkeys(host for host, _, _ in self.members))
        here = [each for each in self.members if each[0] == own[0]]
        return dataclasses.replace(
            place,
            generation=self.generation,
            rank=self.members.index(own),
            size=len(self.members),
            local_rank=here.index(own),
            local_size=len(here),
            cross_rank=hosts.index(own[0]),
            cross_size=len(hosts),
            address=self.addresses.get(own[0], place.address),
            peers=" ".join(f"{unit}.{index}" for _, unit, index in self.members),
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> World:
        fields = json.loads(text)
        fields["members"] = tuple((host, unit, index) for host, unit, index in fields["members"])
        return cls(**fields)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankAssignment:
    """The assignment of ranks to units and hosts.

    Attributes:
        kept: number of ranks of each unit that continues.
        started: hosts with free slots, and the number of ranks to start there.
    """

    kept: Mapping[int, int]
    started: tuple[tuple[str, int], ...]

    @property
    def ranks(self) -> int:
        return sum(self.kept.values()) + sum(ranks for _, ranks in self.started)


def share_out(hosts: Sequence[HostSlots], units: Sequence[HostGroup], most: int | None) -> RankAssignment:
    """Assign slots to living units, oldest first, and free slots to new units.

    Args:
        hosts: usable hosts.
        units: living units.
        most: maximum number of ranks in all; None: the number of slots.
    """
    free = {host.name: host.slots for host in hosts}
    left = sum(free.values()) if most is None else most
    kept: dict[int, int] = {}
    for unit in sorted(units, key=lambda each: each.age):
        ranks = min(unit.ranks, free.get(unit.host, 0), left)
        if ranks:
            kept[unit.number] = ranks
            free[unit.host] -= ranks
            left -= ranks
    started: list[tuple[str, int]] = []
    for host, slots in free.items():
        ranks = min(slots, left)
        if ranks:
            started.append((host, ranks))
            left -= ranks
    return RankAssignment(kept=kept, started=tuple(started))


def members_of(units: Sequence[HostGroup]) -> tuple[tuple[str, int, int], ...]:
    """Return the members by rank, as `World.members`."""
    ordered = sorted(units, key=lambda each: each.age)
    hosts = dict.fromkeys(unit.host for unit in ordered)
    return tuple(
        (host, unit.number, index)
        for host in hosts
        for unit in ordered
        if unit.host == host
        for index in range(unit.ranks)
    )

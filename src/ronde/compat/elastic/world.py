"""Who the ranks of an elastic job are, from one change of hosts to the next: pure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

from ronde.cluster.host_list import HostSlots
from ronde.compat.place import JobPlace

__all__ = ["Shares", "Unit", "World", "members_of", "share_out"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Ranks that were started together on one host, and that end together when one of them fails.

    Attributes:
        number: counts up with each start; a host that returns is another unit.
        ranks: of how many the job makes use: it may become less, and never more.
        joined: the first generation in which its ranks have met others; None: they know nothing of the
            job's state.
    """

    number: int
    host: str
    ranks: int
    joined: int | None = None

    @property
    def age(self) -> tuple[float, int]:
        """By this the oldest comes first."""
        return (math.inf if self.joined is None else self.joined, self.number)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The ranks between two changes of hosts.

    Attributes:
        generation: which one it is, from 1.
        members: by rank: the host, the unit, and which of the unit's ranks. Those of a host are neighbours,
            and the first rank is one of those that have been in the job for longest: it knows the state.
        addresses: by which a host is reached from others, where that is not what its ranks were told.
    """

    generation: int
    members: tuple[tuple[str, int, int], ...]
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def units(self) -> frozenset[int]:
        return frozenset(unit for _, unit, _ in self.members)

    def place_of(self, place: JobPlace) -> JobPlace | None:
        """Where a process stands now; None where it has been left out.

        Args:
            place: where it stood before, or as its launcher has told.
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
class Shares:
    """What becomes of the hosts that there are.

    Attributes:
        kept: of each unit that goes on, how many ranks.
        started: hosts with slots that nobody uses yet, and how many ranks go there.
    """

    kept: Mapping[int, int]
    started: tuple[tuple[str, int], ...]

    @property
    def ranks(self) -> int:
        return sum(self.kept.values()) + sum(ranks for _, ranks in self.started)


def share_out(hosts: Sequence[HostSlots], units: Sequence[Unit], most: int | None) -> Shares:
    """Who goes on and who is started: units that are there come first, the oldest before others.

    Args:
        hosts: that may be used.
        units: that live.
        most: ranks in all; None: as many as there are slots.
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
    return Shares(kept=kept, started=tuple(started))


def members_of(units: Sequence[Unit]) -> tuple[tuple[str, int, int], ...]:
    """By rank, as `World` has it."""
    ordered = sorted(units, key=lambda each: each.age)
    hosts = dict.fromkeys(unit.host for unit in ordered)
    return tuple(
        (host, unit.number, index)
        for host in hosts
        for unit in ordered
        if unit.host == host
        for index in range(unit.ranks)
    )

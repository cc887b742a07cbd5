"""Where ranks are: the place of one among all, and which of them share a host."""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Callable, Sequence

import torch

__all__ = ["Place", "Topology", "learn"]

_NAME_BYTES = 64
_ADDRESS_BYTES = 48
# What the backend says of a connection: the address of its other end, in brackets, the port, what is wrong.
_OTHER_END = re.compile(r"\[([0-9A-Fa-f.:]+)\]:\d+(?:: ([^.\n]+))?")


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The ranks of each host, hosts in the order of their first ranks.

    Attributes:
        hosts: the ranks of each host, in order.
        names: the host's name for each of them.
        addresses: by which the others reach it; "" where the backend has looked that up.
    """

    hosts: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Topology:
        """Hosts of so many ranks each, numbered on."""
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        hosts = tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
        nothing = ("",) * len(hosts)
        return cls(hosts=hosts, names=nothing, addresses=nothing)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(ranks) for ranks in self.hosts)

    def host_of(self, rank: int) -> int:
        """The number of the host on which `rank` is."""
        return next(number for number, ranks in enumerate(self.hosts) if rank in ranks)

    def local_rank_of(self, rank: int) -> int:
        """The number of `rank` among the ranks of its host."""
        return self.hosts[self.host_of(rank)].index(rank)

    def column(self, local_rank: int) -> tuple[int, ...]:
        """The rank with this local rank of every host; empty where some host has none."""
        if local_rank >= min(self.sizes):
            return ()
        return tuple(ranks[local_rank] for ranks in self.hosts)

    def lost(self, complaint: str, rank: int) -> str:
        """What a backend's complaint means to `rank`; as it is where it names no other host's connection."""
        for address, reason in _OTHER_END.findall(complaint):
            for number, known in enumerate(self.addresses):
                if known and address.removeprefix("::ffff:") == known and rank not in self.hosts[number]:
                    return (
                        f"rank {rank} lost its connection to the host {self._described(number)}"
                        f"{reason and f': {reason}'}; see whether that host is up, what its ranks say, and "
                        "the network between"
                    )
        return complaint

    def _described(self, number: int) -> str:
        ranks = self.hosts[number]
        many = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        return f"{self.names[number]} ({self.addresses[number]}, {many})"


def learn(gather: Callable[[torch.Tensor], torch.Tensor], place: Place, *, address: str | None) -> Topology:
    """Every rank says where it is; called by all ranks.

    Args:
        gather: gives every rank every rank's bytes, [n] to [ranks, n].
        place: this rank's.
        address: by which others reach it, where that is known.
    """
    said = socket.gethostname().encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    said += (address or "").encode()[:_ADDRESS_BYTES].ljust(_ADDRESS_BYTES, b"\0")
    said += (place.rank - place.local_rank).to_bytes(8, "little")
    hosts: dict[int, tuple[list[int], str, str]] = {}
    for rank, each in enumerate(gather(torch.frombuffer(bytearray(said), dtype=torch.uint8)).unbind(0)):
        data = each.numpy().tobytes()
        first = int.from_bytes(data[_NAME_BYTES + _ADDRESS_BYTES :], "little")
        name, known = (
            part.rstrip(b"\0").decode("utf-8", "replace")
            for part in (data[:_NAME_BYTES], data[_NAME_BYTES : _NAME_BYTES + _ADDRESS_BYTES])
        )
        hosts.setdefault(first, ([], name, known))[0].append(rank)
    places = [hosts[first] for first in sorted(hosts)]
    return Topology(
        hosts=tuple(tuple(ranks) for ranks, _, _ in places),
        names=tuple(name for _, name, _ in places),
        addresses=tuple(known for _, _, known in places),
    )

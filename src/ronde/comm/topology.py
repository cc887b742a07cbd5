"""Places of ranks: position among all, and hosts that they share."""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Callable, Sequence

import torch

__all__ = ["RankPosition", "Topology", "learn"]

_NAME_BYTES = 64
_ADDRESS_BYTES = 48
# A connection in a backend's message: the address of its other end, in brackets, the port, the reason.
_OTHER_END = re.compile(r"\[([0-9A-Fa-f.:]+)\]:\d+(?:: ([^.\n]+))?")


@dataclasses.dataclass(frozen=True, slots=True)
class RankPosition:
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
        addresses: the address at which others reach the host; "" where the backend has looked it up.
    """

    hosts: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Topology:
        """Return a topology of hosts with `sizes` ranks, numbered in order."""
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        hosts = tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
        nothing = ("",) * len(hosts)
        return cls(hosts=hosts, names=nothing, addresses=nothing)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(ranks) for ranks in self.hosts)

    def host_of(self, rank: int) -> int:
        """Return the number of the host of `rank`."""
        return next(number for number, ranks in enumerate(self.hosts) if rank in ranks)

    def local_rank_of(self, rank: int) -> int:
        """Return the number of `rank` among the ranks of its host."""
        return self.hosts[self.host_of(rank)].index(rank)

    def column(self, local_rank: int) -> tuple[int, ...]:
        """Return the rank with this local rank of every host. It is empty where some host has fewer ranks."""
        if local_rank >= min(self.sizes):
            return ()
        return tuple(ranks[local_rank] for ranks in self.hosts)

    def lost(self, complaint: str, rank: int) -> str:
        """Rewrite a backend's complaint for users, if it names another host's connection."""
        for address, reason in _OTHER_END.findall(complaint):
            for number, known in enumerate(self.addresses):
                if known and address.removeprefix("::ffff:") == known and rank not in self.hosts[number]:
                    return (
                        f"rank {rank} lost its connection to the host "
                        f"{self._described(number)}{reason and f': {reason}'}; check whether that host is "
                        "up, the output of its ranks, and the network [R199]"
                    )
        return complaint

    def _described(self, number: int) -> str:
        ranks = self.hosts[number]
        many = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        return f"{self.names[number]} ({self.addresses[number]}, {many})"


def learn(
    gather: Callable[[torch.Tensor], torch.Tensor], place: RankPosition, *, address: str | None
) -> Topology:
    """Gather the places of all ranks (collective).

    Args:
        gather: function that gives every rank every rank's bytes, [n] to [ranks, n].
        place: the place of this rank.
        address: the address at which others reach it, or None.
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

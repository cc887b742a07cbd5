"""One rank of many, whose peers are taken to do as it does: what it gives to collectives is counted.

Every collective is answered as if all ranks had the same, so a session runs whole steps as rank 0 of any number
of ranks, without them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ronde.comm.process_group import Comm
from ronde.comm.reduce_scatter import end_to_end
from ronde.comm.topology import Topology
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.plan import Plan
from ronde.process.seeds import seed_all
from ronde.runtime.session import Session

RANKS_OF_A_HOST = 8


@dataclasses.dataclass(frozen=True)
class Call:
    """A collective of one rank.

    Attributes:
        group: the name of its group.
        ranks: number of the group's ranks.
        sent, held: bytes that the rank gives, and that it has in its hands at the end.
    """

    group: str
    operation: str
    ranks: int
    sent: int
    held: int


class Mirrored:
    """A `Backend` of rank `rank` of `ranks`, which all have the same."""

    name, on_cuda, blocks = "mirrored", False, False

    def __init__(self, group: str, ranks: int, calls: list[Call]) -> None:
        self._group, self._ranks, self._calls = group, ranks, calls

    def _count(self, operation: str, sent: int, held: int) -> None:
        self._calls.append(Call(self._group, operation, self._ranks, sent, held))

    @torch.no_grad()
    def all_reduce(self, flat: torch.Tensor) -> None:
        self._count("all_reduce", flat.nbytes, flat.nbytes)
        flat.mul_(self._ranks)

    @torch.no_grad()
    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> None:
        self._count("all_gather", flat.nbytes, out.nbytes)
        out.view(self._ranks, -1).copy_(flat.view(1, -1))

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        self._count("broadcast", flat.nbytes, flat.nbytes)

    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        sizes = [sum(part.nbytes for part in each) for each in parts]
        self._count("share", sizes[rank], sum(sizes))

    @torch.no_grad()
    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> None:
        self._count("reduce_scatter", sum(part.nbytes for each in pieces for part in each), out.nbytes)
        out.copy_(end_to_end(pieces[rank], out)).mul_(self._ranks)

    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> None:
        self._count("all_to_all", sum(each.nbytes for each in pieces), sum(each.nbytes for each in outs))
        for out in outs:
            out.copy_(pieces[0])

    def send(self, flat: torch.Tensor, to: int) -> None:
        raise AssertionError("single messages have no mirror")

    def receive(self, flat: torch.Tensor, source: int) -> None:
        raise AssertionError("single messages have no mirror")

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing is waited for."""

    def close(self) -> None:
        """There is nothing to let go of."""


class MirroredSession(Session):
    """A session of rank 0 whose groups are mirrors.

    Attributes:
        met: the ranks of each group that it has made, by the group's name.
    """

    def __init__(self, config: RankConfig, plan: Plan, calls: list[Call]) -> None:
        self.met: list[tuple[str, int]] = []
        self._seen = calls
        super().__init__(config, plan)

    def _join(self, name: str, host: str | None, algorithm: Any) -> Comm:
        return self._meet_members(name, host, range(self.config.place.world_size))

    def _meet_members(self, name: str, host: str | None, members: Sequence[int]) -> Comm:
        self.met.append((name, len(members)))
        hosts = Counter(member // RANKS_OF_A_HOST for member in members)
        return Comm(
            Mirrored(name, len(members), self._seen),
            rank=members.index(0),
            world_size=len(members),
            store=dist.HashStore(),
            topology=Topology.of_sizes(tuple(hosts.values())),
        )


@contextmanager
def mirrored(
    ranks: int, plan: str, directory: Path, **run: Any
) -> Iterator[tuple[MirroredSession, list[Call]]]:
    """Rank 0 of so many, in the boundary of this plan; and its collectives so far."""
    calls: list[Call] = []
    place = RankPlace(
        rank=0, world_size=ranks, local_rank=0, local_world_size=min(ranks, RANKS_OF_A_HOST),
        hosts=max(1, ranks // RANKS_OF_A_HOST), run_dir=str(directory), store="tcp://127.0.0.1:1",
        address="127.0.0.1",
    )  # fmt: skip
    config = RankConfig(run=RunSpec(script="", plan=plan, **run), place=place)
    seed_all(0)
    session = MirroredSession(config, Plan.parse(plan), calls)
    try:
        session.install_boundary()
        yield session, calls
    finally:
        session.uninstall_boundary()
        session.leave_subgroups()

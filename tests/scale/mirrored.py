"""One rank of many, whose peers are taken to do as it does; its collectives are counted.

Every collective is answered as if all ranks had the same, so a session runs whole steps as rank 0 of any
number of ranks, without them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ronde.comm.process_group import Comm
from ronde.comm.reduce_scatter import end_to_end
from ronde.comm.topology import Topology
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.plan import Plan
from ronde.process.seeds import seed_all
from ronde.runtime.session import Session
from ronde.runtime.session_groups import SessionGroups
from ronde.testing.run_ranks import Rank

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
        self._count("receive", 0, flat.nbytes)
        flat.zero_()

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing is waited for."""

    def close(self) -> None:
        """There is nothing to let go of."""


class MirroredGroups:
    """Joins groups of rank 0 that are mirrors.

    Attributes:
        met: name and size of each group that was joined.
    """

    def __init__(self, ranks: int, calls: list[Call]) -> None:
        self._everybody, self._seen = range(ranks), calls
        self.met: list[tuple[str, int]] = []

    def join(self, name: str, algorithm: Any, members: Sequence[int] | None) -> Comm:
        members = self._everybody if members is None else members
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
) -> Iterator[tuple[Session, MirroredGroups, list[Call]]]:
    """Install the boundary of a plan on rank 0 of `ranks`; yield its session, groups and collectives."""
    calls: list[Call] = []
    groups = MirroredGroups(ranks, calls)
    place = RankPlace(
        rank=0, world_size=ranks, local_rank=0, local_world_size=min(ranks, RANKS_OF_A_HOST),
        hosts=max(1, ranks // RANKS_OF_A_HOST), run_dir=str(directory), store="tcp://127.0.0.1:1",
        address="127.0.0.1",
    )  # fmt: skip
    config = RankConfig(run=RunSpec(script="", plan=plan, **run), place=place)
    seed_all(0)
    parsed = Plan.parse(plan)
    session = Session(config, parsed, groups=SessionGroups(config, parsed, groups.join))
    try:
        session.install_boundary()
        yield session, groups, calls
    finally:
        session.uninstall_boundary()
        session.groups.leave_subgroups()


@dataclasses.dataclass(frozen=True)
class Counted:
    """What a rank did in training.

    Attributes:
        groups: the names of its process groups.
        joining: its collectives before the script.
        steps: its collectives in each step.
        operations: the bytecodes that Python ran in the last step, 0 if they were not counted.
        files: names of files of checkpoints at the end.
    """

    groups: list[str]
    joining: list[Call]
    steps: list[list[Call]]
    operations: int
    files: list[str]


def trained(
    ranks: int,
    plan: str,
    directory: Path,
    *,
    width: int = 64,
    norm: bool = False,
    count: bool = False,
    saved: bool = False,
) -> Counted:
    """Train a small model as rank 0 of so many, two rows each.

    Args:
        width: features of the hidden layer; so many that rank 0 has some elements, where state is in shards.
        norm: whether the model has a batch norm.
        count: whether bytecodes are counted.
        saved: whether there is a checkpoint every two steps.
    """
    folder = directory / f"{ranks} of {plan}"
    run = {"checkpoint": str(folder), "checkpoint_every": (2, 0.0)} if saved else {}
    operations = 0

    def traced(frame: Any, event: str, _: Any) -> Any:
        nonlocal operations
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        operations += event == "opcode" and frame.f_code.co_filename != __file__
        return traced

    with mirrored(ranks, plan, directory, **run) as (session, joined, calls):
        if session.checkpoints is not None:
            session.checkpoints.begin()
        joining, steps = list(calls), []
        middle = nn.BatchNorm1d(width) if norm else nn.Tanh()
        model = nn.Sequential(nn.Linear(16, width), middle, nn.Linear(width, 1))
        optimizer = torch.optim.Adam(model.parameters())
        rows = torch.randn(2 * ranks, 16)
        before = sys.gettrace()
        for step in range(6):
            begun = len(calls)
            if count and step == 5:
                sys.settrace(traced)
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sys.settrace(before)
            steps.append(calls[begun:])
        if session.checkpoints is not None:
            session.checkpoints.finish()
        groups = [name for name, _ in joined.met]
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Counted(groups, joining, steps, operations, files)


def of_rank(process: Rank, cases: Sequence[tuple[int, str, dict[str, Any]]], directory: str) -> list[Counted]:
    """The cases of `trained`, in one process of a pool: a session replaces functions of torch."""
    if process.rank:
        return []
    return [trained(ranks, plan, Path(directory), **options) for ranks, plan, options in cases]


def groups_of(process: Rank, cases: Sequence[tuple[int, str]], directory: str) -> list[list[tuple[str, int]]]:
    """The process groups of each case, with their sizes."""
    found: list[list[tuple[str, int]]] = []
    if process.rank:
        return found
    for ranks, plan in cases:
        with mirrored(ranks, plan, Path(directory)) as (_, joined, _):
            found.append(joined.met)
    return found

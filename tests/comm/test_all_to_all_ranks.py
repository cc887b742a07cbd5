"""Every rank sends something of its own to every other, or to all, through shared memory and by messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES


def _sizes(world_size: int) -> list[list[int]]:
    """Rows that each rank sends to each: none, few, and more than any buffer holds."""
    return [
        [0 if one < other else 1 + 90_000 * one * other for other in range(world_size)]
        for one in range(world_size)
    ]


def _piece(source: int, to: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(rows * 3).add(10 * source + to).to(dtype).view(rows, 3)


def _exchange(rank: Rank, comm: Comm) -> list[str]:
    sizes = _sizes(rank.world_size)
    problems: list[str] = []
    for dtype in (torch.float64, torch.int64, torch.bfloat16):
        sent = [_piece(rank.rank, to, sizes[rank.rank][to], dtype) for to in range(rank.world_size)]
        expected = [_piece(source, rank.rank, row[rank.rank], dtype) for source, row in enumerate(sizes)]
        for longest in (0, max(map(max, sizes))):
            found, pending = comm.all_to_all_async(sent, [row[rank.rank] for row in sizes], longest)
            pending.wait()
            same = all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
            problems += [] if same else [f"{dtype} differs with longest={longest}"]
    return problems


def _gather(rank: Rank, comm: Comm) -> list[str]:
    """Of one slice, of several, and of some bytes more."""
    problems: list[str] = []
    for numel in (3, 1 << 16, (1 << 17) + 5, 300_001):
        found = comm.all_gather(_piece(rank.rank, 0, numel, torch.float64))
        expected = torch.stack([_piece(each, 0, numel, torch.float64) for each in range(rank.world_size)])
        problems += [] if torch.equal(found, expected) else [f"{numel} rows differ"]
    return problems


def _pass_on(rank: Rank, comm: Comm) -> list[str]:
    """Two messages are under way at once; what was sent may be written to."""
    before = (rank.rank - 1) % rank.world_size
    for scale in (1, 90_000):
        under_way: list[tuple[torch.Tensor, Any]] = []
        for number in (0, 1):
            flat = _piece(rank.rank, number, scale * (1 + rank.rank), torch.float64).view(-1)
            under_way.append(comm.pass_on(flat, 3 * scale * (1 + before)))
            flat.zero_()
        for number, (found, pending) in enumerate(under_way):
            pending.wait()
            expected = _piece(before, number, scale * (1 + before), torch.float64).view(-1)
            if not torch.equal(found, expected):
                return [f"message {number} from rank {before} differs"]
    return []


def as_the_ranks_are_joined(rank: Rank) -> list[str]:
    comm = rank.groups["boundary"]
    return _exchange(rank, comm) + _gather(rank, comm) + _pass_on(rank, comm)


def by_gloo(rank: Rank) -> list[str]:
    """As among hosts of one rank each."""
    comm = join(
        f"file://{rank.directory}/all-to-all-store",
        name="all-to-all",
        place=RankPosition(rank.rank, rank.world_size, 0, 1),
        device="cpu",
        timeout=timedelta(seconds=60),
        host="127.0.0.1",
    )
    try:
        return _exchange(rank, comm) + _gather(rank, comm) + _pass_on(rank, comm)
    finally:
        comm.close()


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("scenario", [as_the_ranks_are_joined, by_gloo])
def test_everybody_gets_what_was_sent(
    ranks: Callable[..., list[Any]], world_size: int, scenario: Any
) -> None:
    assert ranks(world_size, scenario) == [[]] * world_size

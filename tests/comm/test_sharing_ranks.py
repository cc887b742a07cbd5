"""Tensors that ranks complete for each other, through shared memory and by messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from device_library import as_a_library
from ronde.comm.all_gather import messages
from ronde.comm.backend import TorchBackend
from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

# Numbers of elements that each rank brings: none, few, and more than any buffer holds.
_SIZES = ((3, 1 << 21, 7), (), (5, 90_000, 1, 700_000))


def _share(rank: Rank, comm: Comm) -> list[str]:
    problems: list[str] = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.complex64):
        wholes = [
            [torch.arange(size).add(source).to(dtype) for size in _SIZES[source]]
            for source in range(rank.world_size)
        ]
        mine = [
            [whole.clone() if source == rank.rank else torch.zeros_like(whole) for whole in each]
            for source, each in enumerate(wholes)
        ]
        comm.share(mine)
        for expected, found in zip(wholes, mine, strict=True):
            same = all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
            problems += [] if same else [f"{dtype} differs"]
    comm.share([[] for _ in range(rank.world_size)])
    return problems


def as_the_ranks_are_joined(rank: Rank) -> list[str]:
    return _share(rank, rank.groups["boundary"])


def by_gloo(rank: Rank) -> list[str]:
    """As among hosts of one rank each."""
    comm = join(
        f"file://{rank.directory}/sharing-store",
        name="sharing",
        place=RankPosition(rank.rank, rank.world_size, 0, 1),
        device="cpu",
        timeout=timedelta(seconds=60),
        host="127.0.0.1",
    )
    assert isinstance(comm.backend, TorchBackend)
    try:
        return _share(rank, comm)
    finally:
        comm.close()


def by_the_library_of_a_device(rank: Rank) -> list[str]:
    """As NCCL is called, by Gloo: in one all-gather, but where a rank has far more than others."""
    calls: list[str] = []
    with as_a_library(rank, "device-sharing", calls) as comm:
        problems = _share(rank, comm)
        calls.clear()
        parts = [[torch.full((size,), each) for size in (7, 1 << 20)] for each in range(rank.world_size)]
        comm.share([part if each == rank.rank else [torch.zeros_like(one) for one in part]
                    for each, part in enumerate(parts)])  # fmt: skip
        return problems if calls == ["all_gather"] else [*problems, f"calls were {calls}"]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("scenario", [as_the_ranks_are_joined, by_gloo, by_the_library_of_a_device])
def test_every_rank_has_everything(ranks: Callable[..., list[Any]], world_size: int, scenario: Any) -> None:
    assert ranks(world_size, scenario) == [[]] * world_size


def test_messages_are_full_but_the_last() -> None:
    parts = [torch.arange(7), torch.arange(10, 16)]
    assert [[part.tolist() for part in each] for each in messages(parts, 5)] == [
        [[0, 1, 2, 3, 4]],
        [[5, 6], [10, 11, 12]],
        [[13, 14, 15]],
    ]
    assert list(messages([], 5)) == []

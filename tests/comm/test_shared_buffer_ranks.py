"""Buffers in shared memory, small ones that every rank sums and larger ones that ranks sum in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from world_sizes import WORLD_SIZES

Ranks = Callable[..., list[Any]]
SMALL, LARGE = 1001, 200_001


def averaged(rank: Any, dtype: torch.dtype) -> list[tuple[torch.Tensor, bool]]:
    """Means of several turns, some ranks late in each, and whether the buffer's own memory was filled."""
    comm = rank.groups["reducer"]
    buffers = comm.allocate([(SMALL, dtype), (LARGE, dtype)], [torch.device("cpu")] * 2)
    draw = torch.Generator().manual_seed(rank.rank)
    found: list[tuple[torch.Tensor, bool]] = []
    for turn in range(6):
        sames: list[bool] = []
        for buffer in buffers:
            flat, same = buffer.open(0)
            sames.append(same)
            flat.copy_(torch.randn(flat.numel(), generator=draw).to(dtype))
            del flat
            if (turn + rank.rank) % 2:
                sum(i * i for i in range(20_000))
            buffer.launch()
            buffer.advance()
        for step in ("reduce", "collect", "settle"):
            for buffer in buffers:
                getattr(buffer, step)()
        means = [buffer._storage.tensor.clone() for buffer in buffers]
        found += zip(means, sames, strict=True)
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_means_are_alike_to_the_bit_on_all_ranks(ranks: Ranks, world_size: int, dtype: torch.dtype) -> None:
    every = ranks(world_size, averaged, dtype)
    draws = [torch.Generator().manual_seed(rank) for rank in range(world_size)]
    for place, size in enumerate([SMALL, LARGE] * 6):
        given = [torch.randn(size, generator=draw).to(dtype).double() for draw in draws]
        expected = sum(given) / world_size
        first = every[0][place][0]
        tolerance = 1e-12 if dtype is torch.float64 else 2e-2 if dtype is torch.bfloat16 else 1e-6
        torch.testing.assert_close(first.double(), expected, rtol=tolerance, atol=tolerance)
        assert all(torch.equal(found[place][0], first) and found[place][1] for found in every)


def kept(rank: Any) -> list[bool]:
    """What a rank keeps of the memory stays as it is; that rank goes on elsewhere, and the others with it."""
    comm = rank.groups["reducer"]
    found: list[bool] = []
    for size in (SMALL, LARGE):
        (buffer,) = comm.allocate([(size, torch.float32)], [torch.device("cpu")])
        held: list[tuple[torch.Tensor, float]] = []
        for turn in range(1, 5):
            flat, _ = buffer.open(0)
            flat.fill_(turn * (rank.rank + 1))
            buffer.launch()
            for step in (buffer.reduce, buffer.collect, buffer.settle):
                step()
            mean = turn * (rank.world_size + 1) / 2
            found.append(bool((flat == mean).all()))
            if rank.rank == 0:
                held.append((flat.detach(), mean))
            del flat
        found += [bool((each == mean).all()) for each, mean in held]
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_what_a_script_keeps_is_not_written_again(ranks: Ranks, world_size: int) -> None:
    assert all(all(found) for found in ranks(world_size, kept))

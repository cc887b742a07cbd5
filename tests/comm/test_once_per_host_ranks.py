"""Memory that exists once on a host: what is written to it in common, and what stays a rank's own."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from world_sizes import WORLD_SIZES

Ranks = Callable[..., list[Any]]
PAGE = 4096
SIZE = 3 * PAGE + 64


def views(rank: Any, nbytes: int = SIZE) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The memory, whose first bytes rank 0 keeps, then each rank some."""
    each = nbytes // rank.world_size
    memory = rank.groups["boundary"].share_once(nbytes, [(each * rank.rank, each * (rank.rank + 1))])
    return (
        memory,
        torch.frombuffer(memory.common, dtype=torch.uint8),
        torch.frombuffer(memory.private, dtype=torch.uint8),
    )


def written(rank: Any) -> dict[str, list[int]]:
    comm = rank.groups["boundary"]
    memory, common, private = views(rank)
    each = SIZE // rank.world_size
    found = {"new": private[[0, each, -1]].tolist()}
    comm.barrier()
    common[each * rank.rank : each * (rank.rank + 1)] = rank.rank + 1
    comm.barrier()
    found["of all"] = private[[0, each]].tolist()
    comm.barrier()
    private[0] = 10 + rank.rank
    comm.barrier()
    found["own"] = [int(private[0]), int(common[0])]
    memory.forget_writes()
    found["forgotten"] = [int(private[0])]
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_common_is_everybodys_and_private_is_not(ranks: Ranks, world_size: int) -> None:
    for rank, found in enumerate(ranks(world_size, written)):
        assert found == {"new": [0, 0, 0], "of all": [1, 2], "own": [10 + rank, 1], "forgotten": [1]}


def refused(rank: Any) -> bool:
    """There is no memory for rank 1."""
    full = mock.patch("os.posix_fallocate", side_effect=OSError(errno.ENOMEM, "no memory"))
    with full if rank.rank == 1 else nullcontext():
        return rank.groups["boundary"].share_once(64, [(0, 64)]) is None


def test_where_one_cannot_none_has_it(ranks: Ranks) -> None:
    assert ranks(2, refused) == [True, True]


def left_open(rank: Any) -> tuple[int, int]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    made = [views(rank) for _ in range(5)]
    return before, len(list(Path("/proc/self/fd").iterdir())) - 2 * len(made)


def test_only_the_mappings_are_kept(ranks: Ranks) -> None:
    for before, after in ranks(2, left_open):
        assert after <= before

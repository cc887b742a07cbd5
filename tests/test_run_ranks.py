"""Ranks for tests of functions: results in rank order, failures told, processes kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ronde.testing.run_ranks import Rank


def test_functions_run_on_ranks_that_stay(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, total, 3.0) == [7.0, 7.0]
    assert ranks(2, process_id) == ranks(2, process_id)
    assert len(set(ranks(2, process_id))) == 2


def test_the_failure_of_one_rank_is_told_with_its_traceback(ranks: Callable[..., list[Any]]) -> None:
    with pytest.raises(AssertionError, match=r"ValueError: on rank 1"):
        ranks(2, fail_on, 1)
    assert ranks(2, total, 0.0) == [1.0, 1.0]


def total(rank: Rank, value: float) -> float:
    return float(rank.groups["boundary"].all_reduce(torch.tensor([value + rank.rank])))


def process_id(rank: Rank) -> int:
    return os.getpid()


def fail_on(rank: Rank, which: int) -> None:
    if rank.rank == which:
        raise ValueError(f"on rank {which}")

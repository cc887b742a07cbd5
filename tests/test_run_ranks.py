"""Ranks for tests of functions: results in rank order, failures told, processes kept."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from ronde.testing.run_ranks import RankPool


def test_functions_run_on_ranks_that_stay() -> None:
    with RankPool(2) as pool:
        assert pool.run(operator_sum, 3.0) == [7.0, 7.0]
        first = pool.run(process_id)
        with pytest.raises(AssertionError, match=r"rank 1: Traceback[\s\S]*ValueError: on rank 1"):
            pool.run(fail_on, 1)
        assert pool.run(process_id) == first
        assert len(set(first)) == 2


def operator_sum(comm: Any, value: float) -> float:
    return float(comm.all_reduce(torch.tensor([value + comm.rank])))


def process_id(comm: Any) -> int:
    return os.getpid()


def fail_on(comm: Any, rank: int) -> None:
    if comm.rank == rank:
        raise ValueError(f"on rank {rank}")

"""ronde's own ways, on 2 and 3 ranks; the others are in test_command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ronde.bench.collectives.contender import CONTENDERS, OURS
from ronde.bench.collectives.operation import OPERATIONS, Case
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES


def measure_all(rank: Rank, name: str) -> dict[str, float]:
    from ronde.bench.collectives.rank import Serving
    from ronde.bench.collectives.ways.shared_buckets import SharedBucketsWay
    from ronde.bench.collectives.ways.shared_memory import SharedMemoryWay
    from ronde.comm.backend import SharedMemoryBackend

    comm = rank.groups["reducer"]
    assert isinstance(comm.backend, SharedMemoryBackend)
    way = SharedBucketsWay(comm) if name == "shared-buckets" else SharedMemoryWay(comm, comm.backend)
    serving = Serving(way, rank.world_size)
    seconds: dict[str, float] = {}
    for operation in OURS[name].operations:
        for nbytes in (100, 3_000_000):
            case = Case(operation=operation, nbytes=0 if operation == "barrier" else nbytes)
            serving.prepare(operation, case.elements(rank.world_size))
            seconds[case.title] = serving.measure(2)  # checks its result
    return seconds


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", ["shared-memory", "shared-buckets"])
def test_results_are_right(ranks: Callable[..., list[Any]], name: str, world_size: int) -> None:
    for seconds in ranks(world_size, measure_all, name):
        assert "all-reduce of 3 MB" in seconds
        assert all(each > 0 for each in seconds.values())


def test_all_contenders_do_known_operations() -> None:
    assert list(CONTENDERS) == ["shared-memory", "shared-buckets", "ring", "tree", "gloo", "mpi"]
    for contender in CONTENDERS.values():
        assert set(contender.operations) <= set(OPERATIONS)

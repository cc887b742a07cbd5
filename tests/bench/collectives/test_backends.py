"""ronde's own backends, on 2 and 3 ranks; the others are in test_command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ronde.bench.collectives.backends import JOIN
from ronde.bench.collectives.cases import CONTENDERS, OPERATIONS, OURS, Case
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES


def measure_all(rank: Rank, name: str, folder: str) -> dict[str, float]:
    from ronde.bench.collectives.backends import JOIN, Meeting
    from ronde.bench.collectives.rank import Serving

    meeting = Meeting(
        rank=rank.rank,
        ranks=rank.world_size,
        folder=Path(folder),
        timeout=60.0,
        algorithm=OURS[name].algorithm,
    )
    backend = JOIN[name](meeting)
    serving = Serving(backend, rank.world_size)
    seconds: dict[str, float] = {}
    for operation in OURS[name].operations:
        for nbytes in (100, 3_000_000):
            case = Case(operation=operation, nbytes=0 if operation == "barrier" else nbytes)
            serving.prepare(operation, case.elements(rank.world_size))
            seconds[case.title] = serving.measure(2)  # checks its result
    backend.close()
    return seconds


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", ["shared-memory", "shared-buckets"])
def test_results_are_right(
    ranks: Callable[..., list[Any]], name: str, world_size: int, tmp_path: Path
) -> None:
    for seconds in ranks(world_size, measure_all, name, str(tmp_path)):
        assert "all-reduce of 3 MB" in seconds
        assert all(each > 0 for each in seconds.values())


def test_all_contenders_do_known_operations() -> None:
    assert list(JOIN) == list(CONTENDERS)
    assert list(CONTENDERS) == ["shared-memory", "shared-buckets", "ring", "tree", "gloo", "mpi"]
    for contender in CONTENDERS.values():
        assert set(contender.operations) <= set(OPERATIONS)

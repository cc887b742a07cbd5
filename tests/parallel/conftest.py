"""Ranks that share a model: of each session's pool two, and four of a module's own."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from parallel.cut_models import Ranks
from ronde.testing.run_ranks import RankPool


@pytest.fixture
def two(ranks: Ranks) -> Ranks:
    return functools.partial(ranks, 2)


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    pool = RankPool(4, timeout=180)
    yield pool.run
    pool.close()

"""Ranks that have called `init`: a fixture gives a function that runs another on all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat.horovod_ranks import started
from ronde.testing.run_ranks import RankPool

On = Callable[..., list[Any]]


def _on(ranks: int) -> Iterator[On]:
    pool = RankPool(ranks, timeout=60)
    yield functools.partial(pool.run, started)
    pool.close()


@pytest.fixture(scope="module")
def two() -> Iterator[On]:
    yield from _on(2)


@pytest.fixture(scope="module")
def three() -> Iterator[On]:
    yield from _on(3)

"""What functions with a cache have cached is found, and forgotten again."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ronde.boundary.cached_functions import emptied_back, kept_for_all, results


@pytest.mark.parametrize("most", [None, 2, 128])
def test_results_are_found(most: int | None) -> None:
    @functools.lru_cache(most)
    def boxed(*values: Any) -> list[Any]:
        return [*values]

    assert results(boxed, 64) == []
    made = [boxed(1), boxed("a", 2)]
    assert sorted(map(id, results(boxed, 64))) == sorted(map(id, made))
    assert results(boxed, 1) == []
    assert kept_for_all(boxed) == []


@pytest.mark.parametrize("most", [None, 2, 128])
def test_what_is_made_once_is_found(most: int | None) -> None:
    @functools.lru_cache(most)
    def state() -> dict[str, int]:
        return {"n": 0}

    assert kept_for_all(state) == []
    state()["n"] = 3
    assert kept_for_all(state) == [{"n": 3}]


@pytest.mark.parametrize("most", [None, 3, 128])
def test_a_cache_forgets_what_came_later(most: int | None) -> None:
    asked: list[int] = []

    @functools.lru_cache(most)
    def table(n: int) -> int:
        asked.append(n)
        return n

    back = emptied_back(table)
    table(1)
    back()
    assert table.cache_info()[::3] == (0, 0)
    table(1)
    back = emptied_back(table)
    table(2)
    back()
    table(1)
    assert asked == [1, 1, 2]
    for n in (2, 3, 4, 5, 2, 1):  # past the end of the smaller one, with a link to what is gone
        assert table(n) == n
    assert len(results(table, 64)) <= (most or 64) + 1

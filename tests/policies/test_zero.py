"""Who owns what: every element once, in balance, at places where kernels treat it as in the whole."""

from __future__ import annotations

import random

import pytest

from ronde.policies.zero import ALIGNMENT, in_equal_parts
from ronde.shards.spec import Span

LISTS = {
    "one large": [2048 * 2048],
    "one small": [5],
    "nothing": [],
    "small and large": [10, 2048 * 2048, 2048, 7],
    "many small": [17] * 400,
    "empty among them": [0, 300, 0, 300, 0],
    "fewer elements than ranks": [1, 1],
}


def _covered(sizes: list[int], cut: list[tuple[Span | None, ...]]) -> None:
    for size, ranges in zip(sizes, cut, strict=True):
        seen = [0] * size
        for held in ranges:
            if held is not None:
                assert held[0] < held[1]
                for element in range(*held):
                    seen[element] += 1
        assert seen == [1] * size


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("name", [name for name in LISTS if "large" not in name])
def test_every_element_has_one_owner(name: str, world_size: int) -> None:
    cut = in_equal_parts(LISTS[name], world_size)
    assert all(len(ranges) == world_size for ranges in cut)
    _covered(LISTS[name], cut)


@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("name", list(LISTS))
def test_ranks_own_equally_much(name: str, world_size: int) -> None:
    cut = in_equal_parts(LISTS[name], world_size)
    amounts = [sum(each[rank][1] - each[rank][0] for each in cut if each[rank]) for rank in range(world_size)]  # pyright: ignore[reportOptionalSubscript]
    assert sum(amounts) == sum(LISTS[name])
    assert max(amounts) - min(amounts) <= 2 * ALIGNMENT


def test_random_lists_keep_all_promises() -> None:
    draw = random.Random(0)
    for _ in range(200):
        sizes = [draw.choice([1, 3, 127, 128, 129, 1000]) for _ in range(draw.randrange(12))]
        cut = in_equal_parts(sizes, draw.randrange(1, 6))
        _covered(sizes, cut)
        for size, ranges in zip(sizes, cut, strict=True):
            for start, stop in filter(None, ranges):
                assert start % ALIGNMENT == 0
                assert stop % ALIGNMENT == 0 or stop == size

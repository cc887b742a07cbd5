"""Who owns what: every element once, in balance, at places where kernels treat it as in the whole."""

from __future__ import annotations

import random

import pytest

from ronde.parallel.partition import ALIGNMENT, Part, partition

LISTS = {
    "one large": [2048 * 2048],
    "one small": [5],
    "nothing": [],
    "small and large": [10, 2048 * 2048, 2048, 7],
    "many small": [17] * 400,
    "empty among them": [0, 300, 0, 300, 0],
    "fewer elements than ranks": [1, 1],
}


def _covered(sizes: list[int], cut: list[list[Part]]) -> None:
    seen = [[0] * size for size in sizes]
    for parts in cut:
        for part in parts:
            assert part.size > 0
            for element in range(part.start, part.stop):
                seen[part.tensor][element] += 1
    assert all(count == 1 for elements in seen for count in elements)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("name", [name for name in LISTS if "large" not in name])
def test_every_element_has_one_owner(name: str, world_size: int) -> None:
    cut = partition(LISTS[name], world_size)
    assert len(cut) == world_size
    _covered(LISTS[name], cut)


@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("name", list(LISTS))
def test_ranks_own_equally_much(name: str, world_size: int) -> None:
    cut = partition(LISTS[name], world_size)
    amounts = [sum(part.size for part in parts) for parts in cut]
    assert sum(amounts) == sum(LISTS[name])
    assert max(amounts) - min(amounts) <= 2 * ALIGNMENT


def test_random_lists_keep_all_promises() -> None:
    draw = random.Random(0)
    for _ in range(200):
        sizes = [draw.choice([1, 3, 127, 128, 129, 1000]) for _ in range(draw.randrange(12))]
        cut = partition(sizes, draw.randrange(1, 6))
        _covered(sizes, cut)
        for parts in cut:
            assert len({part.tensor for part in parts}) == len(parts)
            for part in parts:
                assert part.start % ALIGNMENT == 0
                assert part.stop % ALIGNMENT == 0 or part.stop == sizes[part.tensor]

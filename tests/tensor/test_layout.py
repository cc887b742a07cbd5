"""Where the rows of a batch lie: cuts cover everything once, and views keep rows together."""

from __future__ import annotations

import math
import random

import pytest
import torch

from ronde.rng.draws import UnknownDraw, find_axis
from ronde.tensor.layout import Layout, memory_order
from ronde.tensor.rules.shapes import reshaped_layout
from ronde.tensor.shard import laid


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("mirrored", [False, True])
def test_parts_taken_are_assembled_to_the_whole(
    outer: int, inner: int, dim: int, world_size: int, mirrored: bool
) -> None:
    layout = Layout(dim, 7, world_size, outer, inner, mirrored)
    shape = [2, 4, 5]
    shape[dim] = layout.size
    whole = torch.arange(math.prod(shape)).view(shape)
    parts = [layout.take(whole, rank) for rank in range(world_size)]
    assert [part.shape[dim] for part in parts] == [layout.local_size(rank) for rank in range(world_size)]
    assert all(layout.global_shape(part.shape) == shape for part in parts)
    assert torch.equal(layout.assemble(parts), whole)


def test_entries_belong_to_the_rank_of_their_row() -> None:
    whole = torch.arange(5 * 7 * 3)  # entry (o, row, i)
    rows = (whole // 3) % 7
    for layout in (Layout(0, 7, 2, 5, 3), Layout(0, 7, 3, 5, 3)):
        for rank in range(layout.world_size):
            start, stop = layout.bounds(rank)
            assert layout.take(rows, rank).unique().tolist() == list(range(start, stop))


def test_mirrored_rows_come_from_both_ends_and_lie_as_the_whole_does() -> None:
    layout = Layout(1, 10, 2, mirrored=True)
    assert [layout.ranges(rank) for rank in (0, 1)] == [[(0, 2), (7, 10)], [(2, 5), (5, 7)]]
    assert [layout.place(7, rank) for rank in (0, 1)] == [2, None]
    whole = torch.arange(20).view(10, 2).t()
    part = layout.take(whole, 0)
    assert part.tolist() == [[0, 2, 14, 16, 18], [1, 3, 15, 17, 19]]
    assert memory_order(part) == memory_order(whole)
    assert layout.at(0) != Layout(0, 10, 2)
    assert not layout.same_cut(Layout(1, 10, 2))


def test_a_tensor_is_laid_in_an_order_of_memory() -> None:
    value = torch.arange(24.0).view(1, 2, 3, 4)
    assert laid(value, (0, 1, 2, 3)) is value
    # To torch a single row lies anywhere: here between its channels and its lines.
    odd = value.as_strided((1, 2, 3, 4), (4, 12, 4, 1)).permute(0, 2, 3, 1)
    for order in ((0, 1, 2, 3), (0, 3, 1, 2), (3, 0, 1, 2)):
        found = laid(odd, order)
        assert torch.equal(found, odd)
        assert memory_order(found) == list(order)


def _factors(number: int, source: random.Random) -> list[int]:
    """A random way to write `number` as a product."""
    sizes: list[int] = []
    while number > 1:
        size = source.choice([divisor for divisor in range(2, number + 1) if number % divisor == 0])
        sizes.append(size)
        number //= size
    for _ in range(source.randrange(2)):
        sizes.insert(source.randrange(len(sizes) + 1), 1)
    return sizes or [1]


def test_a_view_holds_the_same_rows() -> None:
    """Against brute force: each element carries the number of its row through the view."""
    source = random.Random(0)
    kept = 0
    for _ in range(1500):
        rows, world_size = source.choice([4, 5, 6, 7]), source.choice([2, 3])
        shape = [source.choice([1, 2, 3]) for _ in range(source.randrange(1, 4))]
        dim = source.randrange(len(shape))
        layout = Layout(dim, rows, world_size, source.choice([1, 1, 2]), source.choice([1, 1, 3]))
        shape[dim] = layout.size
        line = torch.arange(layout.size).div(layout.inner, rounding_mode="floor") % rows
        numbers = line.view([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape).contiguous()
        values = torch.arange(numbers.numel()).view(shape)
        target = _factors(numbers.numel(), source)
        found = reshaped_layout(shape, layout, target)
        if found is None:
            continue
        kept += 1
        for rank in range(world_size):
            start, stop = layout.bounds(rank)
            mine = found.take(numbers.view(target), rank)
            assert ((mine >= start) & (mine < stop)).all(), (shape, layout, target, found)
            local_shape = list(target)
            local_shape[found.dim] = found.local_size(rank)
            viewed = layout.take(values, rank).reshape(local_shape)
            assert torch.equal(viewed, found.take(values.view(target), rank)), (shape, layout, target, found)
    assert kept > 300


@pytest.mark.parametrize(
    ("shape", "layout", "target", "expected"),
    [
        ([7, 5, 4], Layout(0, 7, 2), [35, 4], Layout(0, 7, 2, 1, 5)),
        ([5, 7, 4], Layout(1, 7, 2), [35, 4], Layout(0, 7, 2, 5, 1)),
        ([35, 4], Layout(0, 7, 2, 1, 5), [7, 5, 4], Layout(0, 7, 2)),
        ([35, 4], Layout(0, 7, 2, 5, 1), [5, 7, 4], Layout(1, 7, 2)),
        ([7, 4], Layout(0, 7, 2), [1, 7, 2, 2], Layout(1, 7, 2)),
        ([6, 4], Layout(0, 6, 2), [3, 8], None),
        ([6, 4], Layout(0, 6, 2), [2, 12], None),
    ],
)
def test_known_views(shape: list[int], layout: Layout, target: list[int], expected: Layout | None) -> None:
    assert reshaped_layout(shape, layout, target) == expected


@pytest.mark.parametrize(
    ("whole", "part", "axis"),
    [([4, 3], [2, 3], 0), ([3, 4], [3, 2], 1), ([20, 3], [10, 3], 0), ([3, 3], [3, 3], None), ([], [], None)],
)
def test_the_axis_that_scales_is_the_batch(whole: list[int], part: list[int], axis: int | None) -> None:
    assert find_axis(whole, part, 4, 2) == axis


@pytest.mark.parametrize(
    ("whole", "part"), [([4, 4], [2, 2]), ([5, 3], [3, 3]), ([4], [2, 1]), ([6, 3], [3, 3]), ([4, 3], [1, 3])]
)
def test_other_changes_of_shape_are_no_batch(whole: list[int], part: list[int]) -> None:
    with pytest.raises(UnknownDraw):
        find_axis(whole, part, 4, 2)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_the_numbers_of_rows_are_known_without_looking_at_each_rank(world_size: int) -> None:
    for rows in range(20):
        for layout in (Layout(0, rows, world_size), Layout(0, rows, world_size, owner=0)):
            assert layout.counts() == {layout.count(rank) for rank in range(world_size)}

"""Splits of elements into contiguous parts."""

from __future__ import annotations

import pytest

from ronde.comm.split import equal_parts, even_offsets, even_part, even_parts, round_up


def elements(parts: list[tuple[int, int]]) -> list[int]:
    return [each for begin, end in parts for each in range(begin, end)]


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_each_element_is_in_one_part_and_even_parts_differ_by_one_at_most(parts: int):
    for count in range(40):
        found = even_parts(count, parts)
        assert elements(found) == list(range(count))
        sizes = [end - begin for begin, end in found]
        assert max(sizes) - min(sizes) <= 1
        assert found == [even_part(count, parts, part) for part in range(parts)]
        assert even_offsets(count, parts) == [*(begin for begin, _ in found), count]


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("multiple", [1, 4])
def test_equal_parts_have_one_size_until_the_elements_end(parts: int, multiple: int):
    for count in range(40):
        found = equal_parts(count, parts, multiple)
        assert len(found) == parts
        assert elements(found) == list(range(count))
        full = round_up(-(-count // parts), multiple)
        assert all(end - begin == full or end == count for begin, end in found)
        assert all(begin % multiple == 0 for begin, end in found if begin < end)

"""Splits of a number of elements into contiguous parts, one per rank. Pure arithmetic on ints."""

from __future__ import annotations

from itertools import pairwise

__all__ = ["equal_parts", "even_offsets", "even_part", "even_parts", "round_up"]


def even_part(count: int, parts: int, part: int) -> tuple[int, int]:
    """Return begin and end of one part; sizes differ by at most one.

    >>> [even_part(10, 3, part) for part in range(3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    return count * part // parts, count * (part + 1) // parts


def even_offsets(count: int, parts: int) -> list[int]:
    """Return the begin of each part of `even_part`, followed by `count`."""
    return [count * part // parts for part in range(parts + 1)]


def even_parts(count: int, parts: int) -> list[tuple[int, int]]:
    """Return begin and end of each part of `even_part`."""
    return list(pairwise(even_offsets(count, parts)))


def equal_parts(count: int, parts: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Return begin and end of parts of one size.

    The last ones may be shorter, or empty.

    Args:
        multiple: divisor of all begins but those of empty parts.

    >>> equal_parts(10, 3), equal_parts(10, 3, multiple=8)
    ([(0, 4), (4, 8), (8, 10)], [(0, 8), (8, 10), (10, 10)])
    """
    size = round_up(-(-count // parts), multiple)
    return list(pairwise(min(count, size * part) for part in range(parts + 1)))


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple that is at least `value`."""
    return -(-value // multiple) * multiple

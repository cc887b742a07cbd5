"""Deduplication of ids, and sums over equal ids."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ronde.server.table.compiled import compiled, prefetch
from ronde.server.table.hashing import mix

__all__ = ["Unique", "sum_rows", "unique"]


class Unique(NamedTuple):
    """Distinct ids, and the mapping back to the given ones."""

    ids: np.ndarray[Any, Any]
    """int64 [m], in the order of first appearance."""
    inverse: np.ndarray[Any, Any]
    """int64 [n]: `ids[inverse]` are the given ids."""
    counts: np.ndarray[Any, Any]
    """int64 [m]: number of occurrences of each id."""


def unique(ids: np.ndarray[Any, Any]) -> Unique:
    """Deduplicate ids; int64 [n]."""
    firsts, inverse, counts = _unique(ids)
    return Unique(ids[firsts], inverse, counts)


@compiled
def _unique(ids: Any) -> Any:
    chunk = 128
    n = ids.shape[0]
    bits = 4
    while (1 << bits) < 2 * n:
        bits += 1
    shift, last = np.uint64(64 - bits), (1 << bits) - 1
    places = np.zeros(1 << bits, np.int32)  # number of a unique id, plus one
    firsts = np.empty(n, np.int64)
    inverse = np.empty(n, np.int64)
    counts = np.zeros(n, np.int64)
    found = 0
    for first in range(0, n, chunk):
        end = min(first + chunk, n)
        for i in range(first, end):
            prefetch(places, np.int64(mix(ids[i]) >> shift), 0)
        for i in range(first, end):
            place = np.int64(mix(ids[i]) >> shift)
            while places[place] != 0 and ids[firsts[places[place] - 1]] != ids[i]:
                place = (place + 1) & last
            if places[place] == 0:
                firsts[found] = i
                found += 1
                places[place] = found
            number = places[place] - 1
            inverse[i] = number
            counts[number] += 1
    return firsts[:found].copy(), inverse, counts[:found].copy()


@compiled
def sum_rows(rows: Any, inverse: Any, count: Any) -> Any:
    """Sum the rows that have the same number, in the order of the rows.

    Args:
        rows: float [n, dim].
        inverse: int64 [n], each in [0, count).
        count: number of rows of the result.

    Returns:
        float [count, dim].
    """
    out = np.zeros((count, rows.shape[1]), rows.dtype)
    for i in range(rows.shape[0]):
        number = inverse[i]
        for c in range(rows.shape[1]):
            out[number, c] += rows[i, c]
    return out

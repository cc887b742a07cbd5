"""Rows are found by id whatever was put in and taken out before, as in a dict."""

from __future__ import annotations

import numpy as np
import pytest

from ronde.server.table.dedup import sum_rows, unique
from ronde.server.table.hashing import BUCKETS, buckets_of
from ronde.server.table.index import SEGMENTS, Index
from ronde.server.table.rows import RowStore, TableFull


class Pair:
    """An index and its rows, beside the dict that they should equal."""

    def __init__(self, max_rows: int) -> None:
        self.index, self.rows = Index(max_rows), RowStore(0, 0, np.dtype(np.float32), max_rows)
        self.dict: dict[int, int] = {}

    def insert(self, ids: np.ndarray) -> None:
        slots = self.rows.take(len(ids))
        self.rows.keys[slots, 0] = ids
        self.index.insert(ids, slots)
        self.dict |= dict(zip(ids.tolist(), slots.tolist(), strict=True))

    def remove(self, ids: np.ndarray) -> None:
        slots = np.array([self.dict.pop(key) for key in ids.tolist()], np.int64)
        self.index.remove(ids, slots)
        self.rows.give_back(slots)

    def check(self, ids: np.ndarray) -> None:
        expected = [self.dict.get(key, -1) for key in ids.tolist()]
        assert self.index.find(ids, self.rows.keys).tolist() == expected
        assert len(self.index) == len(self.rows) == len(self.dict)
        assert sorted(self.index.slots().tolist()) == sorted(self.dict.values())


@pytest.mark.parametrize("span", [4000, 2**62], ids=["close together", "anywhere"])
def test_an_index_is_a_dict(span: int) -> None:
    """Thousands of rows come and go, so that every segment grows several times and gaps are closed."""
    rng = np.random.default_rng(0)
    every = np.unique(rng.integers(-span, span, 6000))
    pair = Pair(len(every))
    for _ in range(30):
        inside = np.fromiter(pair.dict, np.int64, len(pair.dict))
        outside = np.setdiff1d(every, inside)
        pair.insert(rng.permutation(outside)[: rng.integers(0, 1500)])
        pair.check(rng.permutation(every))
        inside = np.fromiter(pair.dict, np.int64, len(pair.dict))
        pair.remove(rng.permutation(inside)[: rng.integers(0, 900)])
        pair.check(rng.permutation(every))


def test_the_ends_of_int64_are_ids() -> None:
    pair = Pair(8)
    ends = np.array([0, -1, 2**63 - 1, -(2**63)])
    pair.insert(ends[:2])
    pair.check(ends)
    pair.insert(ends[2:])
    pair.check(ends)


def test_rows_that_were_given_back_are_taken_first_and_no_more_than_there_are() -> None:
    rows = RowStore(4, 1, np.dtype(np.float64), 5)
    first = rows.take(4)
    rows.give_back(first[1:3])
    assert sorted(rows.take(3).tolist()) == [1, 2, 4]
    with pytest.raises(TableFull, match="a table holds 5 rows and cannot take 1 more: its `max_rows` is 5"):
        rows.take(1)


def test_buckets_lie_in_one_segment_each_and_are_even() -> None:
    buckets = buckets_of(np.arange(200_000))
    assert buckets.min() >= 0
    assert buckets.max() < BUCKETS
    counts = np.bincount(buckets * SEGMENTS // BUCKETS, minlength=SEGMENTS)
    assert counts.min() > 0.9 * counts.mean()
    # Written down, as logs and snapshots rest on it.
    assert buckets_of(np.array([0, 1, -1, 2**40])).tolist() == buckets_of_reference([0, 1, -1, 2**40])


def buckets_of_reference(ids: list[int]) -> list[int]:
    """The finalizer of MurmurHash3 in whole numbers."""
    found = []
    for key in ids:
        h = key % 2**64
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            h = (h ^ h >> 33) * factor % 2**64
        found.append((h ^ h >> 33) >> 52)
    return found


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_equal_ids_are_one_in_the_order_of_first_appearance(count: int) -> None:
    rng = np.random.default_rng(count)
    ids = rng.integers(-count // 3, count // 3 + 1, count)
    distinct = unique(ids)
    assert distinct.ids.tolist() == list(dict.fromkeys(ids.tolist()))
    assert distinct.ids[distinct.inverse].tolist() == ids.tolist()
    assert distinct.counts.tolist() == [ids.tolist().count(key) for key in distinct.ids.tolist()]
    rows = rng.standard_normal((count, 3))
    expected = np.zeros((len(distinct.ids), 3))
    np.add.at(expected, distinct.inverse, rows)
    assert np.array_equal(sum_rows(rows, distinct.inverse, len(distinct.ids)), expected)

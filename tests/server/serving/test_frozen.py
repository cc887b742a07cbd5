"""Tables as they are served: versions beside each other, and rows as int8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ronde.server.table.frozen import FrozenLayout, FrozenTable, quantized
from ronde.server.table.initial import Uniform, Zeros, fill
from ronde.server.table.rows import TableFull

NONE = np.empty(0, np.int64)


def shape(stored: str = "float32", max_rows: int = 20_000) -> FrozenLayout:
    return FrozenLayout(dim=4, stored=stored, initial=Uniform(0.5), seed=3, max_rows=max_rows)


def assert_is(table: FrozenTable, expected: dict[int, Any]) -> None:
    every = np.arange(-300, 300)
    wanted = np.empty((len(every), 4), np.float32)
    fill(wanted, every, Uniform(0.5), 3)
    for id_, row in expected.items():
        wanted[id_ + 300] = row
    rows, found = table.look_up(every)
    assert found == len(expected) == len(table)
    assert np.array_equal(rows, wanted)


@pytest.mark.parametrize("stored", ["float32", "int8"])
def test_each_of_the_last_versions_stays_what_it_was(stored: str) -> None:
    rng = np.random.default_rng(0)
    table, content = FrozenTable(shape(stored)), {}
    kept: list[tuple[FrozenTable, dict[int, Any]]] = []
    for _ in range(40):
        ids = np.unique(rng.integers(-300, 300, rng.integers(1, 150)))
        removed = np.setdiff1d(np.unique(rng.integers(-300, 300, 40)), ids)
        rows = rng.standard_normal((len(ids), 4)).astype(np.float32)
        scales = None
        if stored == "int8":
            rows, scales = quantized(rows)
        table = table.changed(ids, rows, removed, scales)
        served = rows if scales is None else rows * scales[:, None]
        content = {**content, **dict(zip(ids.tolist(), served, strict=True))}
        content = {id_: row for id_, row in content.items() if id_ not in set(removed.tolist())}
        kept = [*kept[-2:], (table, content)]
        for version, expected in kept:
            assert_is(version, expected)


def test_rows_of_versions_that_are_gone_are_used_again() -> None:
    """And those of versions that were made but never served."""
    table = FrozenTable(shape(max_rows=400))
    ids, rows = np.arange(100), np.ones((100, 4), np.float32)
    table = table.changed(ids, rows, NONE)
    for turn in range(50):
        table.changed(ids, rows * -turn, NONE)
        table.changed(np.arange(100, 200), rows, ids[:50]).changed(ids[50:], rows[50:], NONE)
        table = table.changed(ids, rows * turn, NONE)
        assert_is(table, {id_: np.full(4, turn, np.float32) for id_ in range(100)})
    older = [table, table.changed(ids, rows, NONE)]
    for _ in range(2):
        older.append(older[-1].changed(ids, rows, NONE))
    with pytest.raises(TableFull):
        older[-1].changed(ids, rows, NONE)
    assert_is(table, {id_: np.full(4, 49, np.float32) for id_ in range(100)})


def test_int8_is_off_by_half_a_step_at_most() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32) * 3
    rows[7] = 0
    stored, scales = quantized(rows)
    assert np.abs(stored * scales[:, None] - rows).max() <= scales.max() / 2 * 1.0001
    assert not stored[7].any()


def test_all_rows_by_rising_id() -> None:
    table = FrozenTable(FrozenLayout(dim=2, stored="float64", initial=Zeros(), seed=0, max_rows=50))
    table = table.changed(np.array([7, -3]), np.array([[1.0, 2], [3, 4]]), np.array([99]))
    ids, rows, _ = table.rows()
    assert (ids.tolist(), rows.tolist()) == ([-3, 7], [[3, 4], [1, 2]])

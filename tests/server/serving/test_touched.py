"""What a publication tells of again."""

from __future__ import annotations

import numpy as np

from ronde.server.table.config import TableConfig
from ronde.server.table.delta import ToldIds, all_rows, changed_rows
from ronde.server.table.dirty_ids import TouchedIds
from ronde.server.table.eviction import EvictByAge
from ronde.server.table.optimizers import SGD
from ronde.server.table.table import Table


def table() -> Table:
    return Table(TableConfig(dim=2, optimizer=SGD(lr=1.0), evict=EvictByAge(3, every=1), max_rows=1000))


def update(own: Table, *ids: int) -> None:
    own.update(np.array(ids), np.ones((len(ids), 2), np.float32))


def changed(own: Table) -> tuple[list[int], list[int]]:
    """Ids with a row, and those without one any more."""
    told = changed_rows(own)
    assert told is not None
    assert np.array_equal(told.rows, own.look_up(told.ids))
    return sorted(told.ids.tolist()), told.removed.tolist()


def test_at_first_all_rows_are_told() -> None:
    own = table()
    update(own, 5, 3)
    assert changed_rows(own) is None
    assert all_rows(own).ids.tolist() == [3, 5]
    assert changed(own) == ([], [])


def test_then_what_changed_and_what_went() -> None:
    own = table()
    update(own, 5, 3)
    changed_rows(own)
    update(own, 3, 8)
    assert changed(own) == ([3, 8], [])
    for _ in range(3):
        update(own, 8)
    assert changed(own) == ([8], [5])  # 5 is older than three updates
    own.remove(np.array([3, 77]))
    update(own, 5)
    assert changed(own) == ([5], [3])


def test_what_a_version_rests_on_must_have_been_told_by_the_same_process() -> None:
    own, told = table(), ToldIds()

    def ids(version: int, follows: int) -> list[int] | None:
        found = told.of(own, version, follows)
        return None if found is None else sorted(found.tolist())

    update(own, 5)
    assert ids(3, 2) is None  # 2 was before its time
    update(own, 7)
    assert ids(4, 3) == [7]
    update(own, 8)
    assert ids(4, 3) == [7]  # asked again
    assert ids(5, 4) == [8]
    update(own, 9)
    assert ids(6, 0) is None  # 5 was not written
    update(own, 1)
    assert ids(7, 5) is None
    assert ids(8, 7) == []
    own.load(own.state())
    assert ids(9, 8) is None


def test_a_state_that_is_loaded_is_told_whole() -> None:
    own, other = table(), table()
    update(own, 5, 3)
    changed_rows(own)
    update(other, 1)
    own.load(other.state())
    assert changed_rows(own) is None


def test_what_is_kept_is_bounded() -> None:
    touched = TouchedIds(most=100)
    touched.cut()
    for begin in range(0, 400, 5):
        touched.add(np.arange(begin, begin + 10) % 90)
    assert not touched.lost
    assert sorted(touched.cut().tolist()) == list(range(90))
    touched.add(np.arange(101))
    assert touched.lost
    assert len(touched.cut()) == 0
    assert not touched.lost

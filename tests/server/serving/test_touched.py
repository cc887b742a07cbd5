"""What a publication tells of again."""

from __future__ import annotations

import numpy as np

from ronde.server.serving.publication import rows_to_tell
from ronde.server.table.eviction import EvictByAge
from ronde.server.table.optimizers import SGD
from ronde.server.table.table import Table, TableConfig
from ronde.server.table.touched import TouchedIds


def table() -> Table:
    made = Table(TableConfig(dim=2, optimizer=SGD(lr=1.0), evict=EvictByAge(3, every=1), max_rows=1000))
    made.touched = TouchedIds()
    return made


def update(own: Table, *ids: int) -> None:
    own.update(np.array(ids), np.ones((len(ids), 2), np.float32))


def test_at_first_all_rows_are_told() -> None:
    own = table()
    update(own, 5, 3)
    assert own.touched is not None
    assert own.touched.lost
    delta, whole = rows_to_tell(own, whole=True)
    assert whole is not None
    assert (whole.ids.tolist(), delta.ids.tolist()) == ([3, 5], [])
    assert not own.touched.lost


def test_then_what_changed_and_what_went() -> None:
    own = table()
    update(own, 5, 3)
    rows_to_tell(own, whole=True)
    update(own, 3, 8)
    delta, whole = rows_to_tell(own, whole=False)
    assert (sorted(delta.ids.tolist()), delta.removed.tolist(), whole) == ([3, 8], [], None)
    assert np.array_equal(delta.rows, own.look_up(delta.ids))
    for _ in range(3):
        update(own, 8)
    delta, _ = rows_to_tell(own, whole=False)  # 5 is older than three updates
    assert (sorted(delta.ids.tolist()), delta.removed.tolist()) == ([8], [5])
    own.remove(np.array([3, 77]))
    update(own, 5)
    delta, _ = rows_to_tell(own, whole=False)
    assert (sorted(delta.ids.tolist()), delta.removed.tolist()) == ([5], [3])


def test_a_state_that_is_loaded_is_told_whole() -> None:
    own, other = table(), table()
    update(own, 5, 3)
    rows_to_tell(own, whole=True)
    update(other, 1)
    own.load(other.state())
    assert own.touched is not None
    assert own.touched.lost


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

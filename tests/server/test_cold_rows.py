"""A table of which most rows are on disk gives the numbers of one that has all in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ronde.errors import UsageError
from ronde.server.table.admission import AdmitAfter, AdmitByBloomFilter, AdmitWithProbability
from ronde.server.table.cold_store import ColdRowsFailed, ColdStore
from ronde.server.table.config import TableConfig
from ronde.server.table.delta import changed_rows
from ronde.server.table.eviction import EvictByAge, EvictByFrequency, EvictByNorm
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.optimizers import FTRL, SGD, Adagrad, Adam, RowwiseAdagrad
from ronde.server.table.rows import TableFull
from ronde.server.table.table import Table

DIM = 5


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not list(tmp_path.glob("ronde-cold-*")), "a table has left its folder"


def pair(memory_rows: int = 100, **options: Any) -> tuple[Table, Table]:
    """A table whose rows are all in memory, and one with most of them on disk."""
    options = {"optimizer": SGD(lr=0.1), **options}
    return Table(TableConfig(dim=DIM, **options)), Table(
        TableConfig(dim=DIM, cold=OnDisk(memory_rows), **options)
    )


def train(*tables: Table, ids: int = 5000, steps: int = 40, batch: int = 64, seed: int = 0) -> None:
    """Look up, as a script does, and update all alike, half of the ids being asked for often."""
    rng = np.random.default_rng(seed)
    names = np.random.default_rng(1).integers(-(2**62), 2**62, ids)
    for _ in range(steps):
        few = rng.integers(0, 60, batch // 2)
        asked = names[np.concatenate([few, rng.integers(0, ids, batch - len(few))])]
        gradients = rng.standard_normal((batch, DIM)).astype(tables[0].dtype)
        rows = [each.look_up(asked) for each in tables]
        for each, own in zip(tables, rows, strict=True):
            assert np.array_equal(own, rows[0])
            each.update(asked, gradients * (1 + own))
            assert len(each) == len(tables[0])


def same(*tables: Table) -> None:
    """To the bit, however it is asked for."""
    states = [each.state() for each in tables]
    for state in states[1:]:
        assert list(state) == list(states[0])
        assert all(np.array_equal(state[name], states[0][name]) for name in state)
    ids = np.concatenate([states[0]["ids"][::3], [7, 8]])
    assert len({tuple(each.tobytes() for each in table.embeddings(ids)) for table in tables}) == 1
    segments = []
    for each in tables:
        found, rows, following = each.embeddings_from(3, 1)
        segments.append((found[np.argsort(found)].tobytes(), rows[np.argsort(found)].tobytes(), following))
    assert len(set(segments)) == 1


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01), FTRL(lr=0.1, l1=0.01)],
    ids=lambda each: type(each).__name__,
)
def test_a_bounded_table_is_an_unbounded_one(optimizer: Any) -> None:
    one, cold = pair(optimizer=optimizer)
    train(one, cold, ids=5000, steps=100)
    assert cold.on_disk > 1500
    assert len(cold) - cold.on_disk <= 100
    same(one, cold)


@pytest.mark.parametrize(
    "options",
    [
        {"evict": EvictByAge(20, every=7)},
        pytest.param({"evict": EvictByAge(9, every=200)}, marks=pytest.mark.soak),
        {"evict": EvictByNorm(0.55, every=5)},
        {"evict": EvictByFrequency(2, every=11), "dtype": "float64"},
        {"evict": EvictByFrequency(3, every=90), "admit": AdmitAfter(2)},
        {"admit": AdmitByBloomFilter(2, ids=1000), "evict": EvictByAge(15, every=3)},
        pytest.param({"admit": AdmitWithProbability(0.4)}, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_rows_on_disk_are_admitted_and_given_up_alike(options: Any) -> None:
    tables = pair(memory_rows=30, **options)
    told: list[list[Any]] = [[], []]
    for seed in range(7):
        train(*tables, ids=600, steps=12, seed=seed)
        for own, each in zip(told, tables, strict=True):
            own.append(changed_rows(each))
        one, other = (own[-1] for own in told)
        assert (one is None) == (other is None) == (seed == 0)
        if one is not None:
            assert set(one.removed.tolist()) == set(other.removed.tolist())
            order, order_too = np.argsort(one.ids), np.argsort(other.ids)
            assert np.array_equal(one.rows[order], other.rows[order_too])
    assert tables[1].on_disk > 100
    same(*tables)


def test_a_batch_of_more_rows_than_memory_is_to_hold() -> None:
    tables = pair(memory_rows=10)
    train(*tables, ids=900, steps=12, batch=300)
    tables[1].look_up(np.arange(5))
    same(*tables)
    assert len(tables[0]) > 500


def test_a_state_is_loaded_from_either_into_either() -> None:
    one, cold = pair(optimizer=Adam(lr=0.01), evict=EvictByAge(30, every=5))
    train(one, cold, ids=500)
    other, other_cold = pair(optimizer=Adam(lr=0.01), evict=EvictByAge(30, every=5))
    other.load(cold.state())
    train(other_cold, ids=300, seed=5)  # which goes
    other_cold.load(one.state())
    same(one, cold, other, other_cold)
    train(one, cold, other, other_cold, ids=500, seed=9)
    same(one, cold, other, other_cold)


def test_rows_are_removed_wherever_they_are() -> None:
    tables = pair()
    train(*tables, ids=500)
    gone = tables[0].rows().ids[::4]
    for each in tables:
        each.remove(gone)
        each.remove(gone[:3])
    same(*tables)
    train(*tables, ids=500, seed=3)
    same(*tables)
    for each in tables:
        each.clear()
    assert [len(each) for each in tables] == [0, 0]
    train(*tables, ids=500, seed=4)
    same(*tables)


def test_a_bound_on_all_rows_counts_those_on_disk() -> None:
    _, cold = pair(memory_rows=10, max_rows=50)
    cold.update(np.arange(50), np.ones((50, DIM), np.float32))
    with pytest.raises(TableFull, match="a table holds 50 rows and cannot take 1 more: its `max_rows` is 50"):
        cold.update(np.arange(60, 61), np.ones((1, DIM), np.float32))
    cold.update(np.arange(50), np.ones((50, DIM), np.float32))


def test_a_full_disk_loses_nothing_and_room_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, cold = pair(memory_rows=20, evict=EvictByAge(500))
    train(one, cold, ids=200, steps=10)
    state = cold.state()

    def full(store: ColdStore, batch: Any) -> None:
        raise OSError("IO error: No space left on device: while appending")

    with monkeypatch.context() as patches:
        patches.setattr(ColdStore, "_commit", full)
        with pytest.raises(
            ColdRowsFailed, match=r"the disk of .* is full, and takes no more rows of a table"
        ):
            train(cold, ids=3000, steps=10, seed=2)
        after = cold.state()
        assert all(np.array_equal(state[name], after[name]) for name in state)
        assert np.array_equal(one.look_up(state["ids"]), cold.look_up(state["ids"]))
    train(one, cold, ids=3000, steps=10, seed=2)
    same(one, cold)


def test_what_a_dead_process_has_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    _, living = pair(memory_rows=10)
    train(living, ids=100, steps=3)
    (own,) = tmp_path.glob("ronde-cold-*")
    stale, being_made = tmp_path / "ronde-cold-0011", tmp_path / "ronde-cold-0022"
    (stale / "rows").mkdir(parents=True)
    for each in (stale / "lock", stale / "rows" / "000004.sst"):
        each.write_bytes(b"")
    being_made.mkdir()
    _, other = pair(memory_rows=10)
    train(other, ids=100, steps=3)
    assert own.is_dir()
    assert being_made.is_dir()
    assert not stale.exists()
    being_made.rmdir()


def test_a_forked_process_is_told_that_it_has_no_rows_on_disk() -> None:
    _, cold = pair(memory_rows=10)
    train(cold, ids=100, steps=3)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            cold.state()
        except ColdRowsFailed as error:
            os.write(writing, str(error).encode())
        finally:
            del cold  # which removes nothing, and waits for nobody
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert b"can be read by the process that made the table, not by one that was forked" in os.read(
        reading, 1000
    )
    os.close(reading)
    assert len(cold.state()["ids"]) == len(cold)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: OnDisk(0), r"OnDisk\(memory_rows=0\): memory_rows must be at least 1"),
        (lambda: OnDisk(5, "/nowhere"), r"OnDisk\(directory=/nowhere\): there is no such directory"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make()


def test_rocksdict_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'ronde\[server\]'"):
        OnDisk(5)

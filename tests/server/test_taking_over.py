"""A run with other servers begins with the tables that an earlier run's servers had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ronde.errors import UsageError
from ronde.server.dense import DenseShard
from ronde.server.import_tables import take_tables
from ronde.server.record import Record
from ronde.server.shard import ServerShard
from ronde.server.sparse import SparseShard
from ronde.server.storage import Storage, recover
from ronde.server.table.hashing import BUCKETS, buckets_of
from ronde.server.table.state import State, merge
from server.records import NUMBER_OF_TABLES, some_records


def of_server(server: int, servers: int) -> Callable[[Any], Any]:
    return lambda ids: buckets_of(ids) * servers // BUCKETS == server


def state_of(directory: Path) -> tuple[ServerShard, list[State]]:
    sparse = SparseShard()
    shard = ServerShard({"dense": DenseShard(), "sparse": sparse})
    recover(directory, shard, print)
    return shard, [sparse.tables[number].state() for number in range(NUMBER_OF_TABLES)]


def apply(directory: Path, records: list[Record]) -> None:
    sparse = SparseShard()
    shard = ServerShard({"dense": DenseShard(), "sparse": sparse})
    storage = Storage(directory, shard)
    for number, record in enumerate(records):
        storage.append(record)
        shard.apply(record)
        if number == len(records) // 2:
            storage.begin_snapshot()
            storage.wait()
    storage.close()


@pytest.mark.parametrize(("before", "now"), [(1, 1), (2, 3), (3, 2), (3, 1)])
def test_tables_move_to_other_servers(tmp_path: Path, before: int, now: int) -> None:
    """All rows, their optimizer state and counters, and who waits for admission."""
    source = tmp_path / "source"
    for server in range(before):
        apply(source / f"server-{server}", some_records(40, of_server(server, before)))
    files = {path: path.read_bytes() for path in source.glob("*/*")}
    apply(tmp_path / "alone", some_records(40))
    _, expected = state_of(tmp_path / "alone")
    taken: list[list[State]] = []
    for server in range(now):
        directory = tmp_path / "new" / f"server-{server}"
        directory.mkdir(parents=True)
        take_tables(source, directory, index=server, servers=now, tell=print)
        shard, tables = state_of(directory)
        assert shard.marks == {}
        for table in tables:
            assert of_server(server, now)(table["ids"]).all()
        taken.append(tables)
    for number in range(NUMBER_OF_TABLES):
        merged = merge([tables[number] for tables in taken])
        for name, value in expected[number].items():
            if name != "admission.counters":  # each server has all of them
                assert np.array_equal(merged[name], value), name
    assert {path: path.read_bytes() for path in source.glob("*/*")} == files


def test_counters_of_a_filter_go_to_every_server(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for server in range(2):
        apply(source / f"server-{server}", some_records(40, of_server(server, 2)))
    parts = [state_of(source / f"server-{server}")[1][1] for server in range(2)]
    directory = tmp_path / "server-0"
    directory.mkdir()
    take_tables(source, directory, index=0, servers=3, tell=print)
    _, tables = state_of(directory)
    assert np.array_equal(tables[1]["admission.counters"], merge(parts)["admission.counters"])


def test_a_folder_without_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folders server-0"):
        take_tables(tmp_path, tmp_path, index=0, servers=1, tell=print)

"""Import of tables from an earlier run's servers, of any number.

Whole buckets of rows move, with optimizer state, counters and admission filters. Sequence numbers do not: a
new run numbers its changes from 1. Dense parameters do not either: every worker sends them with its first
step, and their optimizers' state comes from the script's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ronde.errors import RondeError, UsageError
from ronde.server.array_codec import Array
from ronde.server.dense import DenseShard
from ronde.server.shard import ServerShard
from ronde.server.snapshot import commit, write_snapshot
from ronde.server.sparse import SparseShard
from ronde.server.storage import recover
from ronde.server.table.config import TableConfig
from ronde.server.table.hashing import owners_of
from ronde.server.table.state import State, divide, merge
from ronde.server.table.table import Table
from ronde.trace.server_states import server_states

__all__ = ["take_tables"]


def take_tables(
    source: Path, directory: Path, *, index: int, servers: int, tell: Callable[[str], object]
) -> None:
    """Write a server's first snapshot, with its share of an earlier run's tables.

    Args:
        source: the earlier run's directory, with a folder `server-0`, `server-1`, ... per server; unchanged.
        directory: directory of the new server.
        index, servers: index of the new server, and their number.

    Raises:
        UsageError: the folders are missing.
        RondeError: a folder's state is damaged, or the disk is full.
    """
    folders = _folders(source)
    parts: dict[int, list[State]] = {}
    configs: dict[int, TableConfig] = {}
    sources: list[SparseShard] = []

    def mine(ids: Array) -> Array:
        return owners_of(ids, servers) == index

    for folder in folders:
        sparse = SparseShard(directory=str(directory))
        sources.append(sparse)
        recover(folder, ServerShard({"dense": DenseShard(), "sparse": sparse}), tell, mend=False)
        for number, table in sparse.tables.items():
            if configs.setdefault(number, table.config) != table.config:
                raise RondeError(
                    f"the servers in {source} have made table {number} with different values [R415]"
                )
            parts.setdefault(number, []).append(divide(table.state_in_memory(), mine))
    taken = SparseShard(directory=str(directory))
    for number, states in parts.items():
        table = taken.tables[number] = Table(configs[number], str(directory))
        table.load(_joined(states))
        for source_tables in sources:
            if number in source_tables.tables:
                for page in source_tables.tables[number].rows_on_disk():
                    table.put(page.of(mine(page.ids)))
    state = ServerShard({"dense": DenseShard(), "sparse": taken}).state()
    try:
        write_snapshot(directory, 0, state)
        commit(directory, 0, 1)
    except OSError as error:
        raise RondeError(f"{directory} cannot take the tables of {source}: {error.strerror} [R415]") from None
    rows = sum(len(table) for table in taken.tables.values())
    tell(f"{rows} rows of {len(taken.tables)} tables are taken over from {len(folders)} servers of {source}")


def _folders(source: Path) -> list[Path]:
    numbered = server_states(source)
    if not numbered or sorted(numbered) != list(range(len(numbered))):
        raise UsageError(
            f"--server-state {source}: no folders server-0, server-1, ... of an earlier run's servers [R414]"
        )
    return [numbered[number] for number in sorted(numbered)]


def _joined(states: list[State]) -> State:
    steps = max(int(np.max(state["steps"])) for state in states)
    return merge(states) | {"steps": np.array(steps)}

"""Changes that workers send, as a function of number and server state.

Changes of one server are numbered: 1 makes the table; then each step has three: rows are updated, gradients
of a dense parameter are added, and its optimizer steps. So whoever sends a change, and however often, sends
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ronde.server.dense import DenseShard, array_of
from ronde.server.shard import ServerShard
from ronde.server.sparse import SparseShard
from ronde.server.table.admission import AdmitAfter
from ronde.server.table.config import TableConfig
from ronde.server.table.config_json import write_config
from ronde.server.table.eviction import EvictByAge
from ronde.server.table.hashing import owners_of
from ronde.server.table.optimizers import Adam
from ronde.server.transport.wire import Message, Opcode

__all__ = ["ELEMENTS", "Array", "Asked", "change", "changes", "new_shard", "reference"]

Array = np.ndarray[Any, Any]

ELEMENTS = 4099
"""Of the dense parameter on each server, whose key is the server's number."""

_CHANGES_OF_A_STEP = 3
_DIM = 8
_IDS, _BATCH = 3000, 256
_TABLE = TableConfig(dim=_DIM, optimizer=Adam(), admit=AdmitAfter(2), evict=EvictByAge(40, every=16))


class Asked(NamedTuple):
    """A change, as it is asked for."""

    operation: Opcode
    meta: dict[str, Any]
    arrays: list[Array]


def changes(steps: int) -> int:
    """Numbers of one server in a training."""
    return 1 + _CHANGES_OF_A_STEP * steps


def new_shard() -> tuple[ServerShard, SparseShard]:
    """Return the initial state of a server."""
    sparse = SparseShard()
    return ServerShard({"dense": DenseShard(), "sparse": sparse}), sparse


def change(
    number: int,
    *,
    server: int,
    servers: int,
    worker: int,
    read: Callable[[Opcode, dict[str, Any], list[Array]], Array],
) -> Asked:
    """One worker's part of a change of one server.

    Args:
        read: the server's answer, after all changes before this one.
    """
    step, kind = divmod(number - 2, _CHANGES_OF_A_STEP)
    if number == 1:
        return Asked(Opcode.MAKE_TABLE, {"table": 0, "config": write_config(_TABLE)}, [])
    if kind == 0:
        ids = np.random.default_rng([step, worker]).integers(-_IDS, _IDS, _BATCH)
        ids = ids[owners_of(ids, servers) == server]
        rows = read(Opcode.LOOK_UP, {"table": 0}, [ids])
        gradients = rows * np.float32(0.1) + _noise(step, worker, server, len(ids), _DIM)
        return Asked(Opcode.UPDATE, {"table": 0, "lr": 0.01}, [ids, gradients, np.ones(len(ids), np.int64)])
    if kind == 1:
        value = read(Opcode.PULL, {"keys": [server]}, []) if step else _first_value(server)
        gradient = value * np.float32(0.01) + _noise(step, worker, server, 1, ELEMENTS)[0]
        meta = {"keys": [server], "sizes": [ELEMENTS], "dtype": "float32", "fresh": [1]}
        return Asked(Opcode.ADD_GRADIENTS, meta, [gradient])
    sends_value = step == 0 and worker == 0
    meta = {
        "optimizer": 0,
        "class": "Adam",
        "groups": [{"keys": [server], "options": {"lr": 0.001 * (1 + step % 3)}}],
        "default": "float32",  # what torch.get_default_dtype() is for the script
        "anew": step == 0,
        "values": [[server, "value", "float32", ELEMENTS]] if sends_value else [],
        "state": [],
    }
    return Asked(Opcode.STEP, meta, [_first_value(server)] if sends_value else [])


def reference(steps: int, *, servers: int, workers: int) -> list[ServerShard]:
    """The servers' state at the end, made here, one change after another."""
    shards = [new_shard()[0] for _ in range(servers)]
    for server, shard in enumerate(shards):

        def read(
            operation: Opcode, meta: dict[str, Any], arrays: list[Array], shard: ServerShard = shard
        ) -> Array:
            return shard.read(Message(operation, meta, arrays))[1][0]

        for number in range(1, changes(steps) + 1):
            messages = [
                Message(
                    *change(number, server=server, servers=servers, worker=worker, read=read),
                    worker=worker,
                    sequence=number,
                    clock=number,
                )
                for worker in range(workers)
            ]
            shard.apply(shard.prepare(messages))
    return shards


def _noise(step: int, worker: int, server: int, rows: int, columns: int) -> Array:
    rng = np.random.default_rng([step, worker, server, columns])
    return rng.standard_normal((rows, columns)).astype(np.float32)


def _first_value(server: int) -> Array:
    generator = torch.Generator().manual_seed(server)
    return array_of(torch.randn(ELEMENTS, generator=generator))

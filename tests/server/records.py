"""Records of a small table and of a dense parameter, and shards that they are applied to."""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.server.dense import DenseShard
from ronde.server.record import Record
from ronde.server.shard import ServerShard
from ronde.server.sparse import SparseShard
from ronde.server.table.admission import AdmitAfter, AdmitByBloomFilter
from ronde.server.table.config import TableConfig
from ronde.server.table.config_json import write_config
from ronde.server.table.optimizers import Adam
from ronde.server.transport.wire import Opcode

__all__ = ["NUMBER_OF_TABLES", "same", "shard", "some_records"]

NUMBER_OF_TABLES = 2
_CONFIGS = (
    TableConfig(dim=4, optimizer=Adam(), admit=AdmitAfter(2)),
    TableConfig(dim=3, optimizer=Adam(), admit=AdmitByBloomFilter(2, ids=1000)),
)


def shard() -> ServerShard:
    return ServerShard({"dense": DenseShard(), "sparse": SparseShard()})


def some_records(count: int, keeps: Any = lambda ids: np.ones(len(ids), bool)) -> list[Record]:
    """The first makes tables and a parameter, the others change them; of rows only those that `keeps`."""
    rng = np.random.default_rng(0)
    out = [
        Record(Opcode.MAKE_TABLE, {"table": number, "config": write_config(config)}, [], {0: number + 1})
        for number, config in enumerate(_CONFIGS)
    ]
    values = np.arange(5, dtype=np.float32)
    meta = {"keys": [0], "sizes": [5], "dtype": "float32"}
    out.append(Record(Opcode.INIT, meta, [values], {0: 3}))
    while len(out) < count:
        mark = len(out) + 1
        number = mark % 3
        if number == 2:
            out.append(Record(Opcode.ADD, meta, [values * mark], {0: mark}, {0: mark}))
            continue
        ids = rng.integers(-50, 50, 40)
        gradients = rng.standard_normal((40, _CONFIGS[number].dim)).astype(np.float32)
        kept = keeps(ids)
        arrays = [ids[kept], gradients[kept], np.ones(kept.sum(), np.int64)]
        out.append(Record(Opcode.UPDATE, {"table": number, "lr": 0.1}, arrays, {0: mark}, {0: mark}))
    return out[:count]


def same(one: ServerShard, other: ServerShard) -> bool:
    """Whether two have the same state, to the bit."""
    (told, arrays), (told_too, arrays_too) = one.state(), other.state()
    return told == told_too and [a.tobytes() for a in arrays] == [a.tobytes() for a in arrays_too]

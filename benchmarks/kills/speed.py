"""Cost of a log and snapshots for a server:"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kills.changes import new_shard
from ronde.bench.machine import Machine
from ronde.server.journal import LogWriter, Sync
from ronde.server.record import Record
from ronde.server.storage import Storage, recover
from ronde.server.table.config import TableConfig
from ronde.server.table.config_json import write_config
from ronde.server.table.optimizers import RowwiseAdagrad
from ronde.server.transport.wire import Opcode

_SIZES = {"4 KB": (4096, 5000), "64 KB": (65_536, 2000), "4 MB": (4 << 20, 64)}
_SYNCS: tuple[Sync, ...] = ("never", "group", "always")
_SLOW = 20  # times fewer records where each waits for the disk
_DIM = 16


def main() -> None:
    """Measure in a folder of the file system that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills.speed", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000, 5_000_000])
    parser.add_argument("--directory", type=Path, help="where to write, instead of the temporary folder")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    asked = parser.parse_args()
    machine = Machine.here()
    with tempfile.TemporaryDirectory(prefix="ronde-speed-", dir=asked.directory) as name:
        logs = [_log(Path(name) / f"{sync}-{size}", sync, size) for sync in _SYNCS for size in _SIZES]
        shots = [_snapshot(Path(name) / f"rows-{rows}", rows) for rows in asked.rows]
    report = {"kind": "log", "machine": dataclasses.asdict(machine), "log": logs, "snapshots": shots}
    text = json.dumps(report, indent=2) + "\n"
    if asked.json is not None:
        asked.json.write_text(text)
    sys.stdout.write(text)


def _log(directory: Path, sync: Sync, size: str) -> dict[str, Any]:
    directory.mkdir()
    nbytes, count = _SIZES[size]
    count = count // _SLOW if sync == "always" else count
    journal = LogWriter(directory, 0, sync, lambda words: None)
    record = Record(Opcode.ADD, {"keys": [0]}, [np.ones(nbytes, np.uint8)], {0: 1})
    begun = time.perf_counter()
    for _ in range(count):
        journal.append(record)
        journal.tick()
    seconds = time.perf_counter() - begun
    journal.close()
    return {
        "sync": sync,
        "record": size,
        "records_per_s": round(count / seconds),
        "mb_per_s": round(journal.nbytes / seconds / 1e6, 1),
    }


def _snapshot(directory: Path, rows: int) -> dict[str, Any]:
    """Measure a server's pause for a snapshot, and its recovery."""
    shard, _ = new_shard()
    storage = Storage(directory, shard, least=1 << 60)
    config = write_config(TableConfig(_DIM, optimizer=RowwiseAdagrad()))
    _make(storage, shard, Record(Opcode.MAKE_TABLE, {"table": 0, "config": config}, [], {0: 1}))
    for begin in range(0, rows, 65_536):
        ids = np.arange(begin, min(begin + 65_536, rows))
        arrays = [ids, np.ones((len(ids), _DIM), np.float32), np.ones(len(ids), np.int64)]
        _make(storage, shard, Record(Opcode.UPDATE, {"table": 0, "lr": 0.1}, arrays, {0: begin + 2}))
    begun = time.perf_counter()
    storage.begin_snapshot()
    pause = storage.pause
    storage.wait()
    written = time.perf_counter() - begun
    storage.close()
    state = sum(path.stat().st_size for path in directory.glob("snapshot-*"))
    begun = time.perf_counter()
    recover(directory, new_shard()[0], lambda words: None)
    return {
        "rows": rows,
        "state_mb": round(state / 1e6, 1),
        "pause_ms": round(pause * 1e3, 2),
        "written_in_s": round(written, 2),
        "back_in_s": round(time.perf_counter() - begun, 2),
    }


def _make(storage: Storage, shard: Any, record: Record) -> None:
    storage.append(record)
    shard.apply(record)


if __name__ == "__main__":
    main()

"""A store of rows by id in RocksDB, with batched writes, reads and removals.

There are two kinds of keys. `r` and the mixed id: a segment of the index is a range of keys. `d`, a step and
the mixed id: the rows to evict at a step are a range too. Numbers in keys are big-endian. The value of a row
is the step of the sweep before it was written (int64), then its bytes as in memory, id included.

The store does not outlive its process, so RocksDB's write-ahead log is off.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from ronde.errors import RondeError
from ronde.server.array_codec import Array
from ronde.server.table.cold_folder import ColdFolder, remove_tree
from ronde.server.table.hashing import hashes_of
from ronde.server.table.index import SEGMENTS

__all__ = ["HEAD_BYTES", "ColdRowsFailed", "ColdStore", "records_of"]

#: Bytes before a row's: the step of the sweep before it was written.
HEAD_BYTES = 8

_BATCH = 1 << 16  # rows per batch of Python objects
_ROW, _DUE = ord("r"), ord("d")
_WRITE_BUFFER = 32 << 20
_CACHE = 64 << 20
_OPEN_FILES = 256


class ColdRowsFailed(RondeError):
    """Raised when rows cannot be moved to or from disk."""


class ColdStore:
    """The rows of one table that are on disk. Stale copies of rows that are in memory again may be among
    them.

    Args:
        above: parent of the store's folder; None: the folder for temporary files.
        row_bytes: bytes of a row.
    """

    __slots__ = ("__weakref__", "_database", "_folder", "_frozen", "_record_bytes", "_spent")

    def __init__(self, above: str | None, row_bytes: int) -> None:
        self._record_bytes = HEAD_BYTES + row_bytes
        self._folder = ColdFolder.make(above)
        self._frozen = 0
        self._spent: list[bytes] = []  # keys of past steps, deleted by the next batch
        try:
            self._database: Any = _open(f"{self._folder.path}/rows")
        except Exception as error:
            self._folder.remove()
            raise _failure(self._folder.path, error) from None
        weakref.finalize(self, _close, self._database, self._folder)

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._folder.path

    def write(self, records: Array, ids: Array, ends: Array | None, removed: Array) -> None:
        """Write rows and remove others, atomically.

        Args:
            records: uint8 [n, HEAD_BYTES + row_bytes].
            ids: int64 [n].
            ends: step at which each row is evicted; int64 [n], negative for never; None: all never.
            removed: ids of rows to remove; int64 [k].

        Raises:
            ColdRowsFailed: the write failed, for instance because the disk is full.
        """
        from rocksdict import WriteBatch

        hashes = hashes_of(ids)
        batch: Any = WriteBatch(raw_mode=True)
        gone = _keys(_ROW, hashes_of(removed))
        for begin in range(0, len(gone), _ROW_KEY):
            batch.delete(gone[begin : begin + _ROW_KEY])
        for key in self._spent:
            batch.delete(key)
        keys, body, width = _keys(_ROW, hashes), records.tobytes(), self._record_bytes
        put = batch.put
        for number in range(len(ids)):
            put(
                keys[number * _ROW_KEY : (number + 1) * _ROW_KEY],
                body[number * width : (number + 1) * width],
            )
        if ends is not None:
            dated = ends >= 0
            due = _keys(_DUE, ends[dated].astype(np.uint64), hashes[dated])
            for begin in range(0, len(due), _DUE_KEY):
                put(due[begin : begin + _DUE_KEY], b"")
        self._do(self._commit, batch)
        self._spent.clear()

    def find(self, ids: Array) -> tuple[Array, Array]:
        """Look up rows: returns presence, bool [n], and records, uint8 [k, HEAD_BYTES + row_bytes]."""
        keys = _keys(_ROW, hashes_of(ids))
        there = np.zeros(len(ids), bool)
        found: list[Array] = []
        for first in range(0, len(ids), _BATCH):
            last = min(first + _BATCH, len(ids))
            asked = [keys[at * _ROW_KEY : (at + 1) * _ROW_KEY] for at in range(first, last)]
            answers = self._do(self._database.get, asked)
            there[first:last] = [each is not None for each in answers]
            found.append(records_of(b"".join(filter(None, answers)), self._record_bytes))
        return there, np.concatenate(found) if found else np.empty((0, self._record_bytes), np.uint8)

    def scan(self, segment: int | None = None) -> Iterator[Array]:
        """Yield the records of all rows or of one index segment, in batches."""
        first, last = (0, SEGMENTS) if segment is None else (segment, segment + 1)
        begin = _keys(_ROW, _segment_begins(first))
        end = bytes([_ROW + 1]) if last == SEGMENTS else _keys(_ROW, _segment_begins(last))
        items = self._do(self._database.items, False, begin)
        values = (value for _, value in itertools.takewhile(lambda item: item[0] < end, items))
        while batch := self._do(lambda: list(itertools.islice(values, _BATCH))):
            yield records_of(b"".join(batch), self._record_bytes)

    def take_due(self, after: int, step: int) -> tuple[Array, Array]:
        """Return the rows due for eviction after `after` up to `step`. Call it once per step, as the due keys
        are removed.

        Returns:
            The due steps (int64 [n]) and records (uint8 [n, HEAD_BYTES + row_bytes]) of the rows that are
            present.
        """
        begin = _keys(_DUE, np.array([after + 1], np.uint64))
        end = _keys(_DUE, np.array([step + 1], np.uint64))
        keys = self._do(lambda: list(itertools.takewhile(lambda key: key < end, self._keys_from(begin))))
        self._spent += keys
        answers = self._do(self._database.get, [bytes([_ROW]) + key[-8:] for key in keys]) if keys else []
        steps = [int.from_bytes(key[1:9], "big") for key, value in zip(keys, answers, strict=True) if value]
        return np.array(steps, np.int64), records_of(b"".join(filter(None, answers)), self._record_bytes)

    def freeze(self) -> str:
        """Keep a read-only copy for another process; files are linked, not copied.

        Raises:
            ColdRowsFailed: the copy cannot be made.
        """
        from rocksdict import Checkpoint

        self.thaw()
        self._frozen += 1
        path = f"{self._folder.path}/frozen-{self._frozen}"
        self._do(Checkpoint(self._database).create_checkpoint, path)
        return path

    def thaw(self) -> None:
        """Remove the copy that `freeze` made."""
        remove_tree(f"{self._folder.path}/frozen-{self._frozen}")

    def _commit(self, batch: Any) -> None:
        self._database.write(batch)

    def _keys_from(self, begin: bytes) -> Iterator[bytes]:
        return self._database.keys(False, begin)

    def _do(self, call: Any, *arguments: Any) -> Any:
        if os.getpid() != self._folder.process:
            raise ColdRowsFailed(
                "rows on disk can be read by the process that made the table, not by one that was forked "
                "from it: look rows up in the main process [R469]"
            )
        try:
            return call(*arguments)
        except Exception as error:
            raise _failure(self._folder.path, error) from None


_ROW_KEY, _DUE_KEY = 9, 17


def records_of(body: bytes, record_bytes: int) -> Array:
    """Split concatenated records; uint8 [n, record_bytes], writable."""
    return np.frombuffer(bytearray(body), np.uint8).reshape(-1, record_bytes)


def _keys(kind: int, *numbers: Array) -> bytes:
    """Return concatenated keys, each a kind and big-endian numbers (uint64 [n] each)."""
    out = np.empty((len(numbers[0]), 1 + 8 * len(numbers)), np.uint8)
    out[:, 0] = kind
    for place, each in enumerate(numbers):
        out[:, 1 + 8 * place : 9 + 8 * place] = each.astype(">u8").view(np.uint8).reshape(-1, 8)
    return out.tobytes()


def _segment_begins(segment: int) -> Array:
    return np.array([segment * (2**64 // SEGMENTS)], np.uint64)


def _failure(path: str, error: Exception) -> ColdRowsFailed:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "No space left" in said:
        return ColdRowsFailed(
            f"the disk of {path} is full, and takes no more rows of a table: they stay in memory, and none "
            "is lost; make room there, give OnDisk(directory=) another disk, or raise its memory_rows [R182]"
        )
    return ColdRowsFailed(f"rows of a table cannot be moved to {path}, or back ({said}) [R468]")


def _open(path: str) -> Any:
    from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteOptions

    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(10, False)  # ids without a row need no disk access
    blocks.set_block_cache(Cache(_CACHE))
    blocks.set_cache_index_and_filter_blocks(True)  # bounds memory for any number of rows
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())  # floats compress badly
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_max_write_buffer_number(3)
    options.set_max_open_files(_OPEN_FILES)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    database = Rdict(path, options)
    writing: Any = WriteOptions()
    writing.disable_wal = True
    database.set_write_options(writing)
    return database


def _close(database: Any, folder: ColdFolder) -> None:
    if os.getpid() != folder.process:
        # A forked process lacks RocksDB's threads; the destructor would wait for them forever.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
    else:
        database.cancel_all_background(True)
        with contextlib.suppress(Exception):  # its flush is useless, and fails by now
            database.close()
    folder.remove()

"""The tier of a table's rows on disk: rows that were touched least recently.

Rows move to disk and back in batches. A row that is in memory again leaves a stale copy on disk: memory is
authoritative. So bringing a row back removes nothing on disk, and a look-up writes only the rows that make
room for it.

A row on disk is not touched, so the step at which the eviction rule will delete it is known when it is
written. That step is stored with it, and a sweep reads only the rows that are due.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from ronde.errors import UsageError
from ronde.server.array_codec import Array
from ronde.server.table.cold_store import HEAD_BYTES, ColdRowsFailed, ColdStore
from ronde.server.table.eviction import EvictByFrequency, Eviction, Idle, next_turns
from ronde.server.table.index import SEGMENTS, Index, segments_of
from ronde.server.table.memory import ReservedMemory
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.rows import RowStore

__all__ = ["ColdTier", "RawRows"]

_SHARE = 16  # 1/16 of the rows in memory moves to disk at a time
_MOST_PENDING = 1 << 16


class RawRows:
    """Rows as raw bytes, with views of their fields.

    Args:
        raw: uint8 [n, row_bytes], in the layout of memory.
        rows: rows in memory, for their layout.
    """

    __slots__ = ("_dim", "_first", "_state", "_values", "counters", "raw")

    def __init__(self, raw: Array, rows: RowStore) -> None:
        self.raw = np.ascontiguousarray(raw)
        self._first, self._dim, self._state = rows.first, rows.dim, rows.state
        self._values = self.raw.view(rows.values.dtype)
        self.counters = self.raw.view(np.uint32)

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def ids(self) -> Array:
        return self.raw.view(np.int64)[:, 0].copy()

    @property
    def embeddings(self) -> Array:
        return self._values[:, self._first : self._first + self._dim].copy()

    @property
    def states(self) -> Array:
        begin = self._first + self._dim
        return self._values[:, begin : begin + self._state].copy()

    @property
    def counts(self) -> Array:
        return self.counters[:, 2].copy()

    @property
    def versions(self) -> Array:
        return self.counters[:, 3].copy()


class ColdTier:
    """The rows of one table that are on disk.

    Args:
        config: number of rows in memory, and folder.
        evict: the table's eviction rule.
        rows, index: the rows in memory.

    Attributes:
        count: number of rows that are only on disk.
        step: step of the table's last sweep.
    """

    __slots__ = (
        "_config",
        "_evict",
        "_index",
        "_now",
        "_pending",
        "_rows",
        "_store",
        "_touched",
        "count",
        "step",
    )

    def __init__(self, config: OnDisk, evict: Eviction | None, rows: RowStore, index: Index) -> None:
        if evict is not None and not hasattr(evict, "ends"):
            raise UsageError(
                f"EmbeddingTable(evict={type(evict).__name__}(...), cold=OnDisk(...)): tables with rows on "
                "disk support only the eviction rules of ronde.table [R467]"
            )
        self._config, self._evict, self._rows, self._index = config, evict, rows, index
        self._store: ColdStore | None = None  # made for the first row
        self.count = self.step = 0
        # Last touch of each row in memory: a count of calls, which wraps around.
        self._touched = ReservedMemory(4 * rows.max_rows).array[: 4 * rows.max_rows].view(np.uint32)
        self._now = 0
        self._pending = np.empty(0, np.int64)  # evicted ids that may still be on disk

    def find(self, ids: Array) -> tuple[Array, RawRows]:
        """Look up ids that are not in memory. Returns presence, bool [n], and the rows found."""
        if self._store is None or not self.count:
            return np.zeros(len(ids), bool), self._raw(
                np.empty((0, HEAD_BYTES + self._rows.row_bytes), np.uint8)
            )
        there, records = self._store.find(ids)
        if len(self._pending) and there.any():
            alive = ~np.isin(ids[there], self._pending)
            records = records[alive]
            there[there] = alive
        return there, self._raw(records)

    def looked_up(self, slots: Array, found: RawRows) -> None:
        """Move looked-up rows to memory, unless they are many; a full disk prevents it.

        Args:
            slots: row numbers of looked-up rows in memory; int64 [n].
            found: looked-up rows on disk.
        """
        self._touch(slots)
        if 0 < len(found) <= max(1, self._config.memory_rows // 2):
            with contextlib.suppress(ColdRowsFailed):
                self._make_room(len(found))
                self._enter(found)

    def bring(self, ids: Array) -> Array:
        """Move rows to memory before an update, with room for ids without a row.

        Args:
            ids: int64 [n], distinct.

        Returns:
            The row numbers, -1 for an id without a row; int64 [n].

        Raises:
            ColdRowsFailed: rows could not be moved, for instance because the disk is full; no row has
                changed.
        """
        slots = self._index.find(ids, self._rows.keys)
        self._touch(slots[slots >= 0])
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            there, found = self.find(ids[missing])
            self._make_room(len(missing))
            slots[missing[there]] = self._enter(found)
        elif len(self._pending) > _MOST_PENDING:
            self._write(np.empty(0, np.int64))
        return slots

    def touch(self, slots: Array) -> None:
        """Mark new rows as touched now."""
        self._touched[slots] = self._now

    def forget(self, ids: Array) -> None:
        """Mark evicted ids, so that their copies on disk no longer count."""
        if self._store is not None and len(ids):
            self._pending = np.concatenate([self._pending, ids])

    def remove(self, ids: Array) -> Array:
        """Evict rows that are only on disk, and return their ids."""
        there, found = self.find(ids)
        self.count -= len(found)
        self.forget(ids[there])
        return ids[there]

    def sweep(self, step: int) -> Array:
        """Evict the rows that are due up to a step, and return their ids."""
        before, self.step = self.step, step
        if self._evict is None or self._store is None or not self.count:
            return np.empty(0, np.int64)
        steps, records = self._store.take_due(before, step)
        if not len(steps):
            return np.empty(0, np.int64)
        bytes_of_rows = np.ascontiguousarray(records[:, HEAD_BYTES:])
        idle, ids = self._idle(records), bytes_of_rows.view(np.int64)[:, 0]
        # A row may have been in memory since, and have another due step.
        gone = ids[(self._evict.ends(idle) == steps) & self._is_cold(ids)]
        self.count -= len(gone)
        self.forget(gone)
        return gone

    def scan(self, segment: int | None = None) -> Iterator[RawRows]:
        """Yield the rows that are only on disk, of all segments or one."""
        if self._store is not None and self.count:
            yield from self.living(self._store.scan(segment))

    def living(self, batches: Iterator[Array]) -> Iterator[RawRows]:
        """Filter batches of records for rows that are only on disk."""
        for records in batches:
            ids = np.ascontiguousarray(records[:, HEAD_BYTES : HEAD_BYTES + 8]).view(np.int64)[:, 0]
            yield self._raw(records[self._is_cold(ids)])

    @property
    def record_bytes(self) -> int:
        """Bytes of a row on disk."""
        return HEAD_BYTES + self._rows.row_bytes

    def freeze(self) -> str:
        """Freeze the store, and return the copy's folder; "" if no rows are on disk."""
        return self._store.freeze() if self._store is not None and self.count else ""

    def thaw(self) -> None:
        """Remove the copy that `freeze` made."""
        if self._store is not None:
            self._store.thaw()

    def clear(self) -> None:
        """Remove all rows."""
        self._store, self.count, self._pending = None, 0, np.empty(0, np.int64)

    def _is_cold(self, ids: Array) -> Array:
        cold = self._index.find(ids, self._rows.keys) < 0
        return cold & ~np.isin(ids, self._pending) if len(self._pending) else cold

    def _touch(self, slots: Array) -> None:
        self._now = (self._now + 1) & 0xFFFFFFFF
        self._touched[slots] = self._now

    def _make_room(self, count: int) -> None:
        """Move the least recently touched rows to disk until `count` more fit.

        Rows of the present call stay.
        """
        excess = len(self._rows) + count - self._config.memory_rows
        if excess <= 0:
            return
        slots = self._index.slots()
        ages = np.uint32(self._now) - self._touched[slots]
        slots, ages = slots[ages > 0], ages[ages > 0]
        most = min(len(slots), max(excess, self._config.memory_rows // _SHARE))
        if most:
            self._write(slots[np.argpartition(ages, len(ages) - most)[len(ages) - most :]])

    def _write(self, slots: Array) -> None:
        """Move rows to disk."""
        if self._store is None:
            directory = self._config.directory
            self._store = ColdStore(None if directory is None else str(directory), self._rows.row_bytes)
        records = np.empty((len(slots), self.record_bytes), np.uint8)
        records[:, :HEAD_BYTES] = np.array([self.step], np.int64).view(np.uint8)
        records[:, HEAD_BYTES:] = self._rows.raw[slots]
        ids = self._rows.keys[slots, 0]
        ends = None if self._evict is None else self._evict.ends(self._idle(records))
        self._store.write(records, ids, ends, self._pending)
        self._pending = np.empty(0, np.int64)
        self._index.remove(ids, slots)
        self._rows.give_back(slots)
        self.count += len(slots)

    def _enter(self, found: RawRows) -> Array:
        slots = self._rows.take(len(found))
        self._rows.raw[slots] = found.raw
        self._index.insert(found.ids, slots)
        self.touch(slots)
        self.count -= len(slots)
        return slots

    def _raw(self, records: Array) -> RawRows:
        """Make rows of records, their counts decayed up to the last sweep."""
        rows = RawRows(records[:, HEAD_BYTES:], self._rows)
        if isinstance(self._evict, EvictByFrequency) and len(rows):
            rows.counters[:, 2] = self._evict.faded(self._idle(records), self.step)
        return rows

    def _idle(self, records: Array) -> Idle:
        assert self._evict is not None
        rows = RawRows(records[:, HEAD_BYTES:], self._rows)
        written = np.ascontiguousarray(records[:, :HEAD_BYTES]).view(np.int64)[:, 0]
        turns = next_turns(segments_of(rows.ids), SEGMENTS, self._evict.every, written)
        return Idle(rows.embeddings, rows.counts, rows.versions, turns)

"""Which rows of a table are in memory: those that were touched last; the others are on disk, whole.

A row goes to disk, and comes back, in batches. What is on disk of a row that has come back is out of date:
memory counts. So a row that comes back is not removed there, and a look-up writes nothing but the rows that
make room for it.

A row on disk is touched by nobody, so the step at which its rule of eviction will give it up is known when it
goes there. It is written beside it, and a sweep reads what has come to its end, instead of all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.cold_store import HEAD_BYTES, ColdRowsFailed, ColdStore
from ronde.server.table.eviction import EvictByFrequency, Eviction, Idle, next_turns
from ronde.server.table.index import SEGMENTS, Index, segments_of
from ronde.server.table.memory import ReservedMemory
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.rows import Rows

__all__ = ["ColdTier", "RawRows"]

Array = np.ndarray[Any, Any]

_SHARE = 16  # of the rows in memory one in so many goes to disk at once
_MOST_PENDING = 1 << 16


class RawRows:
    """Rows as their bytes.

    Args:
        raw: uint8 [n, row_bytes], as memory has them.
        rows: how they are laid out.
    """

    __slots__ = ("_dim", "_first", "_state", "_values", "counters", "raw")

    def __init__(self, raw: Array, rows: Rows) -> None:
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
        config: how many are in memory.
        evict: the table's rule.
        rows, index: those in memory.

    Attributes:
        count: rows that are on disk alone.
        step: of the table's last sweep.
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

    def __init__(self, config: OnDisk, evict: Eviction | None, rows: Rows, index: Index) -> None:
        if evict is not None and not hasattr(evict, "ends"):
            raise UsageError(
                f"EmbeddingTable(evict={type(evict).__name__}(...), cold=OnDisk(...)): rows on disk are "
                "given up by the rules of ronde.table only"
            )
        self._config, self._evict, self._rows, self._index = config, evict, rows, index
        self._store: ColdStore | None = None  # made when there is a row for it
        self.count = self.step = 0
        # When each row in memory was touched last: a count of calls, which may begin anew.
        self._touched = ReservedMemory(4 * rows.max_rows).array[: 4 * rows.max_rows].view(np.uint32)
        self._now = 0
        self._pending = np.empty(0, np.int64)  # ids without a row any more, which may be on disk

    def find(self, ids: Array) -> tuple[Array, RawRows]:
        """Which ids, none of which is in memory, have a row here (bool [n]), and those rows."""
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
        """Bring rows to memory that were found here, where they are not too many; a full disk lets them be.

        Args:
            slots: of rows in memory that were looked up too; int64 [n].
            found: rows that were on disk.
        """
        self._touch(slots)
        if 0 < len(found) <= max(1, self._config.memory_rows // 2):
            with contextlib.suppress(ColdRowsFailed):
                self._make_room(len(found))
                self._enter(found)

    def bring(self, ids: Array) -> Array:
        """Have rows in memory, with room for those that do not exist yet; what is written is written here.

        Args:
            ids: int64 [n], each once.

        Returns:
            The row numbers, -1 where there is no row; int64 [n].

        Raises:
            ColdRowsFailed: the disk is full, say; no row has changed.
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
        """Rows that begin now."""
        self._touched[slots] = self._now

    def forget(self, ids: Array) -> None:
        """Rows are given up, and what may be on disk of them counts no more."""
        if self._store is not None and len(ids):
            self._pending = np.concatenate([self._pending, ids])

    def remove(self, ids: Array) -> Array:
        """Give up rows that are on disk alone, and return their ids."""
        there, found = self.find(ids)
        self.count -= len(found)
        self.forget(ids[there])
        return ids[there]

    def sweep(self, step: int) -> Array:
        """Give up the rows whose end is at a step, and return their ids."""
        before, self.step = self.step, step
        if self._evict is None or self._store is None or not self.count:
            return np.empty(0, np.int64)
        steps, records = self._store.take_due(before, step)
        if not len(steps):
            return np.empty(0, np.int64)
        bytes_of_rows = np.ascontiguousarray(records[:, HEAD_BYTES:])
        idle, ids = self._idle(records), bytes_of_rows.view(np.int64)[:, 0]
        # A row may have come back, or have been here again since, and have another end then.
        gone = ids[(self._evict.ends(idle) == steps) & self._is_cold(ids)]
        self.count -= len(gone)
        self.forget(gone)
        return gone

    def scan(self, segment: int | None = None) -> Iterator[RawRows]:
        """The rows that are on disk alone, or those of them in a segment of the index."""
        if self._store is not None and self.count:
            yield from self.living(self._store.scan(segment))

    def living(self, batches: Iterator[Array]) -> Iterator[RawRows]:
        """Those of all records that are rows on disk alone."""
        for records in batches:
            ids = np.ascontiguousarray(records[:, HEAD_BYTES : HEAD_BYTES + 8]).view(np.int64)[:, 0]
            yield self._raw(records[self._is_cold(ids)])

    @property
    def record_bytes(self) -> int:
        """Bytes of a row on disk."""
        return HEAD_BYTES + self._rows.row_bytes

    def freeze(self) -> str:
        """A folder in which all is as now, as `ColdStore.freeze`; "": nothing is on disk."""
        return self._store.freeze() if self._store is not None and self.count else ""

    def thaw(self) -> None:
        """Remove what `freeze` has kept."""
        if self._store is not None:
            self._store.thaw()

    def clear(self) -> None:
        """Forget all."""
        self._store, self.count, self._pending = None, 0, np.empty(0, np.int64)

    def _is_cold(self, ids: Array) -> Array:
        cold = self._index.find(ids, self._rows.keys) < 0
        return cold & ~np.isin(ids, self._pending) if len(self._pending) else cold

    def _touch(self, slots: Array) -> None:
        self._now = (self._now + 1) & 0xFFFFFFFF
        self._touched[slots] = self._now

    def _make_room(self, count: int) -> None:
        """Move rows to disk until so many more are not too many; those of this call stay."""
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
        """Rows as they are now, which for counts that fade is not as they were written."""
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

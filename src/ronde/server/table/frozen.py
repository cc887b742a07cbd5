"""Immutable versions of a table for serving, with shared memory.

Rows of all versions are in one memory. A newer version has its own index, a copy of about 15 bytes per row,
and new rows for changed ids. A row's memory is reused once all versions that contain it are gone.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ronde.server.table.compiled import compiled, prefetch
from ronde.server.table.config import TableConfig
from ronde.server.table.index import MAX_ROWS, SEGMENTS, _insert, _per_segment, _remove, find_chunk
from ronde.server.table.initial import Initial, fill
from ronde.server.table.rows import RowStore
from ronde.server.table.table import _gather

__all__ = ["FrozenLayout", "FrozenTable", "quantized"]

_FULLEST = 0.7
_LEAST = 16
_SCALE = 2  # column of a row as float32


@dataclass(frozen=True, kw_only=True)
class FrozenLayout:
    """The layout of served rows.

    Attributes:
        dim: floats of a row.
        stored: "float32", "float64" or "int8".
        initial, seed: the rule of first values, for ids without a row.
        max_rows: rows at most, over all versions.
    """

    dim: int
    stored: str
    initial: Initial
    seed: int
    max_rows: int | None = None

    @property
    def served(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.stored == "int8" else self.stored)

    def memory(self) -> RowStore:
        """Allocate memory for rows."""
        dtype = np.dtype(self.stored)
        most = self.max_rows
        if most is None:
            served = TableConfig(dim=self.dim, dtype=self.served.name).rows_at_most
            most = min(MAX_ROWS, 4 * served if self.stored == "int8" else served)
        return RowStore(self.dim, 0, dtype, most)


def quantized(rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Quantize rows to int8 with one scale each. A row is its int8 values times its scale.

    Args:
        rows: [n, dim].

    Returns:
        int8 [n, dim] from -127 to 127, float32 [n]. A value is off by half a scale at most.
    """
    scales = (np.abs(rows).max(axis=1, initial=0) / 127).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(1))[:, None]
    return np.clip(np.rint(rows / divisors), -127, 127).astype(np.int8), scales


class _Change(NamedTuple):
    """Rows that differ between two successive versions."""

    older: weakref.ref[FrozenTable]
    newer: weakref.ref[FrozenTable]
    left: np.ndarray[Any, Any]
    made: np.ndarray[Any, Any]


class FrozenTable:
    """One immutable version of a table.

    Args:
        shape: the layout of its rows.
    """

    def __init__(self, shape: FrozenLayout) -> None:
        self.shape = shape
        self._rows = shape.memory()
        self._changes: deque[_Change] = deque()
        self._used = np.zeros(SEGMENTS, np.int64)
        self._lay_out(self._used)

    def __len__(self) -> int:
        return int(self._used.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of all versions, and of this version's index."""
        return self._rows.nbytes + self._entries.nbytes

    def look_up(self, ids: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
        """Return the ids' rows, and the number of ids that have one. An id without a row gets
        its first values.

        Args:
            ids: int64 [n], any values, repetitions allowed.

        Returns:
            [n, dim] of float32 or float64, and the number of ids with a row.
        """
        out = np.empty((len(ids), self.shape.dim), self.shape.served)
        index = (self._entries, self._begins, self._capacities)
        if self.shape.stored == "int8":
            missing = _gather_int8(
                ids, *index, self._rows.keys, self._rows.values, self._scales, self._rows.first, out
            )
        else:
            missing = _gather(ids, *index, self._rows.keys, self._rows.values, self._rows.first, out)
        if len(missing):
            values = np.empty((len(missing), self.shape.dim), out.dtype)
            fill(values, ids[missing], self.shape.initial, self.shape.seed)
            out[missing] = values
        return out, len(ids) - len(missing)

    def rows(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return all ids, rising, with stored rows and scales (ones if not int8)."""
        slots = (self._entries[self._entries != 0] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1
        slots = slots[np.argsort(self._rows.keys[slots, 0])]
        return self._rows.keys[slots, 0], self._rows.embeddings(slots), self._scales[slots]

    def changed(
        self,
        ids: np.ndarray[Any, Any],
        rows: np.ndarray[Any, Any],
        removed: np.ndarray[Any, Any],
        scales: np.ndarray[Any, Any] | None = None,
    ) -> FrozenTable:
        """Return the next version, with new or changed rows and without removed ids.

        Only one thread at a time may call it, on the newest version; earlier results of this version must be
        gone. This version does not change.

        Args:
            ids: int64 [n], distinct.
            rows: [n, dim] in the stored dtype.
            removed: int64 [k], distinct and disjoint from `ids`; ids without a row are ignored.
            scales: float32 [n], for int8 rows.

        Raises:
            TableFull: both versions do not fit in memory.
        """
        out = object.__new__(FrozenTable)
        out.shape, out._rows, out._changes = self.shape, self._rows, self._changes
        self._use_again()
        before = self._find(ids)
        gone = self._find(removed)
        removed, gone = removed[gone >= 0], gone[gone >= 0]
        slots = self._rows.take(len(ids))
        scales = np.ones(len(ids), np.float32) if scales is None else scales
        # Compiled, as NumPy's indexing holds the GIL and would delay requests.
        _write(slots, ids, rows, scales, self._rows.keys, self._rows.values, self._scales, self._rows.first)
        new = before < 0
        coming = _per_segment(ids[new])
        used = self._used + coming
        if (used > _FULLEST * self._capacities).any():
            out._lay_out(used)
            kept = (self._entries[self._entries != 0] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1
            _insert(self._rows.keys[kept, 0], kept, out._entries, out._begins, out._capacities)
        else:
            out._begins, out._capacities = self._begins, self._capacities
            out._entries = self._entries.copy()
        index = (out._entries, out._begins, out._capacities)
        _remove(removed, gone, *index)
        _remove(ids[~new], before[~new], *index)
        _insert(ids, slots, *index)
        out._used = used - _per_segment(removed)
        left = np.concatenate([gone, before[~new]])
        self._changes.append(_Change(weakref.ref(self), weakref.ref(out), left, slots))
        return out

    @property
    def _scales(self) -> np.ndarray[Any, Any]:
        return self._rows.counters.view(np.float32)[:, _SCALE]

    def _find(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        slots = np.empty(len(ids), np.int64)
        find_chunk(ids, 0, len(ids), self._entries, self._begins, self._capacities, self._rows.keys, slots)
        return slots

    def _lay_out(self, used: np.ndarray[Any, Any]) -> None:
        """Make an empty index with room for these counts per segment, plus growth."""
        self._capacities = (used * 1.3 / _FULLEST).astype(np.int64) + _LEAST
        self._begins = np.concatenate([[0], np.cumsum(self._capacities)[:-1]])
        self._entries = np.zeros(int(self._capacities.sum()), np.uint64)

    def _use_again(self) -> None:
        changes = self._changes
        while changes and changes[-1].newer() is not self:  # a failed or dropped successor
            assert changes[-1].newer() is None, "a newer version of the table lives"
            self._rows.give_back(changes.pop().made)
        while changes and changes[0].older() is None:
            self._rows.give_back(changes.popleft().left)


@compiled
def _write(
    slots: Any, ids: Any, rows: Any, scales: Any, keys: Any, values: Any, all_scales: Any, first: Any
) -> None:
    for i in range(slots.shape[0]):
        slot = slots[i]
        keys[slot, 0] = ids[i]
        all_scales[slot] = scales[i]
        for c in range(rows.shape[1]):
            values[slot, first + c] = rows[i, c]


@compiled
def _gather_int8(  # noqa: PLR0913 - compiled code takes arrays, not objects
    ids: Any,
    entries: Any,
    begins: Any,
    capacities: Any,
    keys: Any,
    values: Any,
    scales: Any,
    first: Any,
    out: Any,
) -> Any:
    """Write rows times their scales to `out`; return the indices of missing ids (int64)."""
    chunk = 64
    dim = out.shape[1]
    slots = np.empty(chunk, np.int64)
    missing = np.empty(ids.shape[0], np.int64)
    lost = 0
    for begin in range(0, ids.shape[0], chunk):
        count = min(chunk, ids.shape[0] - begin)
        find_chunk(ids, begin, count, entries, begins, capacities, keys, slots)
        for j in range(count):
            if slots[j] >= 0:
                for c in range(64, first + dim, 64):
                    prefetch(values, slots[j], c)
        for j in range(count):
            if slots[j] < 0:
                missing[lost] = begin + j
                lost += 1
            else:
                row, scale = values[slots[j]], scales[slots[j]]
                for c in range(dim):
                    out[begin + j, c] = row[first + c] * scale
    return missing[:lost].copy()

"""An index of row numbers by id: linear probing in segments that grow separately.

An entry is one uint64: the lower 32 bits of the id's hash, then the row number plus one; 0 is empty. The hash
bits alone determine an entry's place, so a segment grows without reading rows. The id itself is stored in the
row, next to the values that are read afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.server.table.compiled import compiled, inlined, prefetch
from ronde.server.table.hashing import mix
from ronde.server.table.memory import ReservedMemory

__all__ = ["MAX_ROWS", "SEGMENTS", "Index", "find_chunk", "segments_of"]

#: Limit of rows: a row number takes 32 bits of an entry.
MAX_ROWS = 2**32 - 2
#: Number of segments, by the hash's upper 6 bits; a bucket (the upper 12) lies in one segment.
SEGMENTS = 64

_SEGMENT_SHIFT = np.uint64(64 - 6)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FULLEST = 0.8
_GROWTH = 1.15
_SMALLEST = 16
_HUGE = 2 << 20


class Index:
    """A hash index from ids to row numbers.

    Args:
        max_rows: upper limit of rows.
    """

    def __init__(self, max_rows: int) -> None:
        # The ids per segment vary by the square root of their mean.
        share = max_rows / SEGMENTS
        longest = int((share + 8 * share**0.5) / _FULLEST * _GROWTH) + 2 * _SMALLEST
        self._memory = ReservedMemory(SEGMENTS * longest * 8)
        self.entries = self._memory.array[: SEGMENTS * longest * 8].view(np.uint64)
        self.begins = np.arange(SEGMENTS, dtype=np.int64) * longest
        self.capacities = np.full(SEGMENTS, _SMALLEST, np.int64)
        self._used = np.zeros(SEGMENTS, np.int64)
        self._longest = longest

    def __len__(self) -> int:
        return int(self._used.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of entries in use."""
        return int(self.capacities.sum()) * 8

    def find(self, ids: np.ndarray[Any, Any], keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the row number of each id, -1 if it has none.

        Args:
            ids: int64 [n].
            keys: int64 [rows, words]; column 0 is the id of each row.

        Returns:
            int64 [n].
        """
        return _find(ids, self.entries, self.begins, self.capacities, keys)

    def insert(self, ids: np.ndarray[Any, Any], slots: np.ndarray[Any, Any]) -> None:
        """Insert new distinct ids with their row numbers; int64 [n] both."""
        coming = _per_segment(ids)
        for segment in np.flatnonzero(self._used + coming > _FULLEST * self.capacities):
            self._grow(int(segment), int(self._used[segment] + coming[segment]))
        _insert(ids, slots, self.entries, self.begins, self.capacities)
        self._used += coming

    def remove(self, ids: np.ndarray[Any, Any], slots: np.ndarray[Any, Any]) -> None:
        """Remove present ids with their row numbers; int64 [n] both."""
        _remove(ids, slots, self.entries, self.begins, self.capacities)
        self._used -= _per_segment(ids)

    @property
    def arrays(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Entries, first entry per segment and capacity per segment, for compiled code."""
        return self.entries, self.begins, self.capacities

    def slots(self) -> np.ndarray[Any, Any]:
        """Return the numbers of all rows, unordered; int64 [rows]."""
        return np.concatenate([self.slots_of(segment) for segment in range(SEGMENTS)])

    def slots_of(self, segment: int) -> np.ndarray[Any, Any]:
        """Return the numbers of a segment's rows, unordered; int64 [rows]."""
        begin = self.begins[segment]
        entries = self.entries[begin : begin + self.capacities[segment]]
        return (entries[entries != 0] & _LOW).astype(np.int64) - 1

    def _grow(self, segment: int, used: int) -> None:
        old = int(self.capacities[segment])
        new = old
        while used > _FULLEST * new:
            new = int(new * _GROWTH) + 1
        begin = int(self.begins[segment])
        if new > self._longest:
            raise MemoryError("a segment of the index is full")
        if (new - old) * 8 >= _HUGE or new * 8 >= _HUGE > old * 8:
            self._memory.prefer_huge_pages(begin * 8, (begin + new) * 8)
        _rehash(self.entries, begin, old, new, self.entries[begin : begin + old].copy())
        self.capacities[segment] = new


@inlined
def _home(low: Any, begin: Any, capacity: Any) -> Any:
    """Return an entry's home place: the hash's lower half, scaled to the segment.

    The scaling is Lemire's fast range reduction (2019).
    """
    return begin + np.int64((low * np.uint64(capacity)) >> _HALF)


@inlined
def _after(place: Any, begin: Any, capacity: Any) -> Any:
    return place + 1 if place + 1 < begin + capacity else begin


@compiled
def _probe(key: Any, entries: Any, begins: Any, capacities: Any, keys: Any) -> Any:
    """Return an id's row number by comparing whole ids, -1 if it has none."""
    h = mix(key)
    segment = np.int64(h >> _SEGMENT_SHIFT)
    begin, capacity = begins[segment], capacities[segment]
    place = _home(h & _LOW, begin, capacity)
    while entries[place] != 0:
        entry = entries[place]
        slot = np.int64(entry & _LOW) - 1
        if (entry >> _HALF) == (h & _LOW) and keys[slot, 0] == key:
            return slot
        place = _after(place, begin, capacity)
    return np.int64(-1)


@compiled
def find_chunk(
    ids: Any, first: Any, count: Any, entries: Any, begins: Any, capacities: Any, keys: Any, slots: Any
) -> None:
    """Write the row numbers of `ids[first : first + count]` to `slots[:count]`; -1 if missing.

    Three passes overlap the memory latencies: hash and prefetch the entry; read it and prefetch the row;
    compare the row's id.
    """
    for j in range(count):
        h = mix(ids[first + j])
        segment = np.int64(h >> _SEGMENT_SHIFT)
        place = _home(h & _LOW, begins[segment], capacities[segment])
        prefetch(entries, place, 0)
        slots[j] = place
    for j in range(count):
        h = mix(ids[first + j])
        segment = np.int64(h >> _SEGMENT_SHIFT)
        begin, capacity = begins[segment], capacities[segment]
        place = slots[j]
        slot = np.int64(-1)
        while entries[place] != 0:
            entry = entries[place]
            if (entry >> _HALF) == (h & _LOW):
                slot = np.int64(entry & _LOW) - 1
                prefetch(keys, slot, 0)
                break
            place = _after(place, begin, capacity)
        slots[j] = slot
    for j in range(count):
        slot = slots[j]
        if slot >= 0 and keys[slot, 0] != ids[first + j]:  # another id with the same 38 hash bits
            slots[j] = _probe(ids[first + j], entries, begins, capacities, keys)


@compiled
def _find(ids: Any, entries: Any, begins: Any, capacities: Any, keys: Any) -> Any:
    chunk = 128
    out = np.empty(ids.shape[0], np.int64)
    for first in range(0, ids.shape[0], chunk):
        count = min(chunk, ids.shape[0] - first)
        find_chunk(ids, first, count, entries, begins, capacities, keys, out[first : first + count])
    return out


@compiled
def segments_of(ids: Any) -> Any:
    """Return the segment of each id: int64 [n] to int64 [n]."""
    out = np.empty(ids.shape[0], np.int64)
    for i in range(ids.shape[0]):
        out[i] = np.int64(mix(ids[i]) >> _SEGMENT_SHIFT)
    return out


@compiled
def _per_segment(ids: Any) -> Any:
    out = np.zeros(SEGMENTS, np.int64)
    for i in range(ids.shape[0]):
        out[np.int64(mix(ids[i]) >> _SEGMENT_SHIFT)] += 1
    return out


@compiled
def _insert(ids: Any, slots: Any, entries: Any, begins: Any, capacities: Any) -> None:
    for i in range(ids.shape[0]):
        h = mix(ids[i])
        segment = np.int64(h >> _SEGMENT_SHIFT)
        begin, capacity = begins[segment], capacities[segment]
        place = _home(h & _LOW, begin, capacity)
        while entries[place] != 0:
            place = _after(place, begin, capacity)
        entries[place] = ((h & _LOW) << _HALF) | np.uint64(slots[i] + 1)


@compiled
def _remove(ids: Any, slots: Any, entries: Any, begins: Any, capacities: Any) -> None:
    """Remove entries by backward shift (Knuth, vol. 3, algorithm 6.4R), without tombstones."""
    for i in range(ids.shape[0]):
        h = mix(ids[i])
        segment = np.int64(h >> _SEGMENT_SHIFT)
        begin, capacity = begins[segment], capacities[segment]
        gap = _home(h & _LOW, begin, capacity)
        while np.int64(entries[gap] & _LOW) != slots[i] + 1:
            gap = _after(gap, begin, capacity)
        place = gap
        while True:
            place = _after(place, begin, capacity)
            if entries[place] == 0:
                break
            home = _home(entries[place] >> _HALF, begin, capacity)
            if (place - home) % capacity >= (place - gap) % capacity:
                entries[gap] = entries[place]
                gap = place
        entries[gap] = 0


@compiled
def _rehash(entries: Any, begin: Any, old: Any, new: Any, copy: Any) -> None:
    entries[begin : begin + old] = 0
    for i in range(old):
        if copy[i] != 0:
            place = _home(copy[i] >> _HALF, begin, new)
            while entries[place] != 0:
                place = _after(place, begin, new)
            entries[place] = copy[i]

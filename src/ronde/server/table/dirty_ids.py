"""A record of a table's updated and removed ids, for published versions.

Ids are recorded, not found by the rows' versions: reading every row each second would cost more memory
traffic than the updates themselves, and a removed row has no version.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.server.table.dedup import unique

__all__ = ["MOST_IDS", "TouchedIds"]

#: Ids recorded at most; beyond that, the whole table is written.
MOST_IDS = 1 << 24
_LEAST_TO_PACK = 1 << 18


class TouchedIds:
    """Ids since the last cut, initially unknown.

    Args:
        most: ids recorded at most; beyond that, the whole table must be written.
    """

    __slots__ = ("_ids", "_lost", "_most", "_size")

    def __init__(self, most: int = MOST_IDS) -> None:
        self._ids: list[np.ndarray[Any, Any]] = []
        self._size, self._most = 0, most
        self._lost = True  # earlier changes are not known

    def add(self, ids: np.ndarray[Any, Any]) -> None:
        """Record ids, repetitions allowed; int64 [n]. They are not copied."""
        if len(ids) and not self._lost:
            self._ids.append(ids)
            self._size += len(ids)
            if self._size > max(4 * len(self._ids[0]), min(_LEAST_TO_PACK, self._most)):
                self._pack()

    def lose(self) -> None:
        """Mark all rows as changed."""
        self._lost, self._ids, self._size = True, [], 0

    @property
    def lost(self) -> bool:
        """Return whether the record is incomplete, so that all rows must be written."""
        self._pack()
        return self._lost

    def cut(self) -> np.ndarray[Any, Any]:
        """Return distinct ids since the last cut, int64 [n], and start a new record."""
        self._pack()
        ids = self._ids[0] if self._ids else np.empty(0, np.int64)
        self._lost, self._ids, self._size = False, [], 0
        return ids

    def _pack(self) -> None:
        if self._ids:
            self._ids = [unique(np.concatenate(self._ids)).ids]
            self._size = len(self._ids[0])
            if self._size > self._most:
                self.lose()

"""Which ids of a table were updated or removed since it was last told of.

Kept by id, not found by the rows' versions: to look at every row each second would cost more memory traffic
than the updates themselves, and a row that is gone has no version.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.server.table.combine import unique

__all__ = ["MOST_IDS", "TouchedIds"]

#: So many ids are kept at most; of more, the whole table is told.
MOST_IDS = 1 << 24
_LEAST_TO_PACK = 1 << 18


class TouchedIds:
    """Ids since the last cut.

    Args:
        most: ids that are kept; of more, the whole table is to be told.
    """

    __slots__ = ("_ids", "_lost", "_most", "_size")

    def __init__(self, most: int = MOST_IDS) -> None:
        self._ids: list[np.ndarray[Any, Any]] = []
        self._size, self._most = 0, most
        self._lost = True  # of rows from before nothing is known

    def add(self, ids: np.ndarray[Any, Any]) -> None:
        """Remember ids, repetitions allowed; int64 [n]. They are not copied."""
        if len(ids) and not self._lost:
            self._ids.append(ids)
            self._size += len(ids)
            if self._size > max(4 * len(self._ids[0]), min(_LEAST_TO_PACK, self._most)):
                self._pack()

    def lose(self) -> None:
        """All rows are others now."""
        self._lost, self._ids, self._size = True, [], 0

    @property
    def lost(self) -> bool:
        """Whether the whole table is to be told: what changed is not known, or too much."""
        self._pack()
        return self._lost

    def cut(self) -> np.ndarray[Any, Any]:
        """What was touched since the last cut, each id once; int64 [n]. From here on it is known."""
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

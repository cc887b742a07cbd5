"""A worker's cache of rows with frequent ids.

Each row has a slot, by the id's hash. An id that collides lowers the count of the id in the slot by one, and
takes the slot at zero: the more frequent id stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.server.array_codec import Array
from ronde.server.table.compiled import compiled
from ronde.server.table.hashing import mix

__all__ = ["HotRows"]

_NEVER = np.iinfo(np.int64).min


class HotRows:
    """A bounded cache of rows, each with its version of the table.

    Args:
        dim: floats of a row.
        dtype: dtype of the rows.
        places: number of slots, rounded up to a power of two.
    """

    def __init__(self, dim: int, dtype: np.dtype[Any], places: int) -> None:
        places = 1 << max(places - 1, 1).bit_length()
        self._keys = np.zeros(places, np.int64)
        self._versions = np.full(places, _NEVER)
        self._counts = np.zeros(places, np.int64)
        self._rows = np.zeros((places, dim), dtype)

    def find(self, ids: Array, oldest: int, out: Array) -> Array:
        """Copy cached rows to `out`, and return the indices of missing ids.

        Args:
            ids: int64 [n], distinct.
            oldest: version; rows of earlier versions count as missing.
            out: [n, dim].

        Returns:
            int64 [missing].
        """
        return _find(ids, oldest, self._keys, self._versions, self._counts, self._rows, out)

    def keep(self, ids: Array, rows: Array, versions: Array) -> None:
        """Cache fetched rows; ids int64 [n], rows [n, dim], versions int64 [n]."""
        _keep(ids, rows, versions, self._keys, self._versions, self._counts, self._rows)

    def clear(self) -> None:
        """Forget all rows."""
        self._versions[:] = _NEVER


@compiled
def _find(ids: Any, oldest: Any, keys: Any, versions: Any, counts: Any, rows: Any, out: Any) -> Any:
    missing = np.empty(ids.shape[0], np.int64)
    lost = 0
    last = np.uint64(keys.shape[0] - 1)
    for i in range(ids.shape[0]):
        place = np.int64(mix(ids[i]) & last)
        if keys[place] == ids[i] and versions[place] >= oldest:
            counts[place] += 1
            for c in range(out.shape[1]):
                out[i, c] = rows[place, c]
        else:
            missing[lost] = i
            lost += 1
    return missing[:lost].copy()


@compiled
def _keep(ids: Any, new: Any, new_versions: Any, keys: Any, versions: Any, counts: Any, rows: Any) -> Any:
    last = np.uint64(keys.shape[0] - 1)
    for i in range(ids.shape[0]):
        place = np.int64(mix(ids[i]) & last)
        if keys[place] != ids[i] and counts[place] > 0:
            counts[place] -= 1
            continue
        if keys[place] != ids[i]:
            counts[place] = 0
        keys[place] = ids[i]
        counts[place] += 1
        versions[place] = new_versions[i]
        for c in range(rows.shape[1]):
            rows[place, c] = new[i, c]

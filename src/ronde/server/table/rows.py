"""The rows of a table, one after another: `[id | look-ups, last update | embedding | optimizer state]`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.errors import RondeError
from ronde.server.table.memory import ReservedMemory

__all__ = ["HEADER_BYTES", "Rows", "TableFull"]

#: The id (int64), how often it had a gradient, and the step of its last update (uint32 both).
HEADER_BYTES = 16

_COUNT, _VERSION = 2, 3  # columns of the row as uint32


class TableFull(RondeError):
    """A table has as many rows as it may have, or as memory holds."""


class Rows:
    """Rows of one width in memory that grows without being copied. A row that is given back is used again.

    Args:
        dim: floats of an embedding.
        state: floats of the optimizer's state.
        dtype: float32 or float64.
        max_rows: how many rows there may be at once.
    """

    def __init__(self, dim: int, state: int, dtype: np.dtype[Any], max_rows: int) -> None:
        self.dim, self.state, self.max_rows = dim, state, max_rows
        self.first = HEADER_BYTES // dtype.itemsize  # column where the embedding begins
        row_bytes = self.bytes_of_a_row(dim, state, dtype)
        self._memory = ReservedMemory(max_rows * row_bytes)
        self._memory.prefer_huge_pages(0, self._memory.nbytes)
        whole = self._memory.array[: max_rows * row_bytes].reshape(max_rows, row_bytes)
        #: The same memory three times: [rows, words] as `dtype`, int64 and uint32.
        self.values = whole.view(dtype)
        self.keys = whole.view(np.int64)
        self.counters = whole.view(np.uint32)
        #: And as bytes; uint8 [rows, row_bytes].
        self.raw = whole
        self.row_bytes = row_bytes
        self._used = 0  # rows ever used
        self._free = np.empty(0, np.int64)  # among them, those that are free again

    @staticmethod
    def bytes_of_a_row(dim: int, state: int, dtype: np.dtype[Any]) -> int:
        """Bytes of a row; ids are aligned to 8."""
        return -(-(HEADER_BYTES + (dim + state) * dtype.itemsize) // 8) * 8

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use, rows that are free again among them."""
        return self._used * self.row_bytes

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """How often each row had a gradient, once for each look-up; uint32 [rows]."""
        return self.counters[:, _COUNT]

    @property
    def versions(self) -> np.ndarray[Any, Any]:
        """The step of each row's last update, or of its admission; uint32 [rows]."""
        return self.counters[:, _VERSION]

    def embeddings(self, slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy of the embeddings of some rows; [n, dim]."""
        return self.values[slots, self.first : self.first + self.dim]

    def states(self, slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy of the optimizer state of some rows; [n, state]."""
        return self.values[slots, self.first + self.dim : self.first + self.dim + self.state]

    def write(
        self,
        slots: np.ndarray[Any, Any],
        embeddings: np.ndarray[Any, Any],
        states: np.ndarray[Any, Any],
        counts: np.ndarray[Any, Any],
        versions: np.ndarray[Any, Any],
    ) -> None:
        """Write all of some rows but their ids; the first axis of each is that of `slots`."""
        state = self.first + self.dim
        self.values[slots, self.first : state] = embeddings
        self.values[slots, state : state + self.state] = states
        self.counts[slots] = counts
        self.versions[slots] = versions

    def take(self, count: int) -> np.ndarray[Any, Any]:
        """Numbers of `count` rows that were free; int64 [count].

        Raises:
            TableFull: there are no more.
        """
        again = self._free[len(self._free) - count :] if count <= len(self._free) else self._free
        fresh = count - len(again)
        if self._used + fresh > self.max_rows:
            raise TableFull(self.refusal(len(self), count))
        self._free = self._free[: len(self._free) - len(again)]
        slots = np.concatenate([again, np.arange(self._used, self._used + fresh)])
        self._used += fresh
        return slots

    def refusal(self, held: int, count: int) -> str:
        """A sentence for who wants more rows than there may be."""
        return (
            f"a table holds {held} rows and cannot take {count} more: its `max_rows` is "
            f"{self.max_rows}, of {self.row_bytes} bytes each; evict rows (`evict=`), or admit fewer "
            "(`admit=`)"
        )

    def give_back(self, slots: np.ndarray[Any, Any]) -> None:
        """Free rows; int64 [n]. What stood in them is as it was until they are taken again."""
        self._free = np.concatenate([self._free, slots])

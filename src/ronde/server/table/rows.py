"""Memory of a table's rows: `[id | look-ups, last update | embedding | optimizer state]`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.comm.split import round_up
from ronde.errors import RondeError
from ronde.server.table.memory import ReservedMemory

__all__ = ["HEADER_BYTES", "RowStore", "TableFull"]

#: Bytes before the embedding: id (int64), number of look-ups with a gradient, step of the last update (uint32
#: both).
HEADER_BYTES = 16

_COUNT, _VERSION = 2, 3  # columns of the row as uint32


class TableFull(RondeError):
    """Raised when a table has reached `max_rows` or the memory's limit."""


class RowStore:
    """Rows of one width in memory that grows in place; freed rows are reused.

    Args:
        dim: floats of an embedding.
        state: floats of the optimizer's state.
        dtype: float32 or float64.
        max_rows: rows at most.
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
        #: The same memory as bytes; uint8 [rows, row_bytes].
        self.raw = whole
        self.row_bytes = row_bytes
        self._used = 0  # number of rows ever used
        self._free = np.empty(0, np.int64)  # freed rows among them

    @staticmethod
    def bytes_of_a_row(dim: int, state: int, dtype: np.dtype[Any]) -> int:
        """Return the bytes of a row, a multiple of 8."""
        return round_up(HEADER_BYTES + (dim + state) * dtype.itemsize, 8)

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use, freed rows included."""
        return self._used * self.row_bytes

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """Number of look-ups with a gradient per row; uint32 [rows]."""
        return self.counters[:, _COUNT]

    @property
    def versions(self) -> np.ndarray[Any, Any]:
        """Step of each row's last update or admission; uint32 [rows]."""
        return self.counters[:, _VERSION]

    def embeddings(self, slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a copy of the embeddings of rows; [n, dim]."""
        return self.values[slots, self.first : self.first + self.dim]

    def states(self, slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a copy of the optimizer state of rows; [n, state]."""
        return self.values[slots, self.first + self.dim : self.first + self.dim + self.state]

    def write(
        self,
        slots: np.ndarray[Any, Any],
        embeddings: np.ndarray[Any, Any],
        states: np.ndarray[Any, Any],
        counts: np.ndarray[Any, Any],
        versions: np.ndarray[Any, Any],
    ) -> None:
        """Write all fields of rows except ids; the first axis follows `slots`."""
        state = self.first + self.dim
        self.values[slots, self.first : state] = embeddings
        self.values[slots, state : state + self.state] = states
        self.counts[slots] = counts
        self.versions[slots] = versions

    def take(self, count: int) -> np.ndarray[Any, Any]:
        """Allocate `count` rows, and return their numbers; int64 [count].

        Raises:
            TableFull: the table has reached `max_rows`.
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
        """Return the message for a table that cannot take `count` more rows."""
        return (
            f"a table holds {held} rows and cannot take {count} more: its `max_rows` is "
            f"{self.max_rows}, of {self.row_bytes} bytes each; evict rows (`evict=`), or admit fewer "
            "(`admit=`) [R465]"
        )

    def give_back(self, slots: np.ndarray[Any, Any]) -> None:
        """Free rows; int64 [n]. Their content stays until they are reused."""
        self._free = np.concatenate([self._free, slots])

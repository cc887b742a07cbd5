"""Configuration of an embedding table."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.admission import Admission
from ronde.server.table.eviction import Eviction
from ronde.server.table.index import MAX_ROWS
from ronde.server.table.initial import Initial, Uniform
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.optimizers import Adagrad, RowOptimizer
from ronde.server.table.rows import RowStore

__all__ = ["TableConfig"]


@dataclass(frozen=True)
class TableConfig:
    """Configuration of a table; the same on every rank, server and replica.

    Attributes:
        dim: floats of an embedding.
        optimizer: update rule of rows.
        initial: first values of a row; None: uniform within 1 / sqrt(dim).
        admit: rule by which ids get a row; None: all do.
        evict: rule by which rows are deleted; None: rows stay.
        dtype: "float32" or "float64".
        seed: seed of first values.
        max_rows: rows at most; None: as many as fit in this machine's memory.
        half_rows: whether rows and gradients are sent between servers and ranks as float16.
        cold: number of rows in memory, the others being on disk; None: all are in memory.

    Raises:
        UsageError: a size is below 1, or the dtype is another.
    """

    dim: int
    optimizer: RowOptimizer = Adagrad()  # noqa: RUF009 - frozen
    initial: Initial | None = None
    admit: Admission | None = None
    evict: Eviction | None = None
    dtype: str = "float32"
    seed: int = 0
    max_rows: int | None = None
    half_rows: bool = False
    cold: OnDisk | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise UsageError(f"a table of dim={self.dim}: dim must be at least 1 [R461]")
        if self.dtype not in ("float32", "float64"):
            raise UsageError(f"a table of dtype={self.dtype}: choose float32 or float64 [R461]")
        if self.max_rows is not None and not 1 <= self.max_rows <= MAX_ROWS:
            raise UsageError(f"a table of max_rows={self.max_rows}: from 1 to {MAX_ROWS} are possible [R461]")

    @property
    def first_values(self) -> Initial:
        return self.initial if self.initial is not None else Uniform(self.dim**-0.5)

    @property
    def rows_at_most(self) -> int:
        """Upper limit of rows in memory."""
        if self.max_rows is not None:
            return self.max_rows
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        state = self.optimizer.state(self.dim)
        return min(MAX_ROWS, memory // RowStore.bytes_of_a_row(self.dim, state, np.dtype(self.dtype)))

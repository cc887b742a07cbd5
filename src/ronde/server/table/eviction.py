"""Which rows a table gives up. A row that is looked up again begins anew, with its first values.

Each rule is asked of every row once in `every` updates, a part of the index at a time, and looks at the row
alone: so the same rows go, whatever the number of servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.rows import Rows

__all__ = ["EvictByAge", "EvictByFrequency", "EvictByNorm", "Eviction"]


@dataclass(frozen=True)
class EvictByAge:
    """Rows that were not updated in the last `steps` updates of the table."""

    steps: int
    every: int = 1024

    def __post_init__(self) -> None:
        _check(self, steps=self.steps, every=self.every)

    def judge(self, rows: Rows, slots: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
        """Which of the rows go; int64 [n] to bool [n]."""
        return step - rows.versions[slots].astype(np.int64) > self.steps


@dataclass(frozen=True)
class EvictByNorm:
    """Rows whose embedding has an L2 norm below `below`."""

    below: float
    every: int = 1024

    def __post_init__(self) -> None:
        _check(self, below=self.below, every=self.every)

    def judge(self, rows: Rows, slots: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
        """Which of the rows go; int64 [n] to bool [n]."""
        return np.linalg.norm(rows.embeddings(slots), axis=1) < self.below


@dataclass(frozen=True)
class EvictByFrequency:
    """Rows that were looked up fewer than `below` times; counts are halved at each sweep, so fame fades."""

    below: int
    every: int = 1024

    def __post_init__(self) -> None:
        _check(self, below=self.below, every=self.every)

    def judge(self, rows: Rows, slots: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
        """Which of the rows go; int64 [n] to bool [n]."""
        counts = rows.counts[slots]
        rows.counts[slots] = counts // 2
        return counts < self.below


Eviction = EvictByAge | EvictByNorm | EvictByFrequency


def _check(rule: object, **above_nought: float) -> None:
    for key, value in above_nought.items():
        if not value > 0:
            raise UsageError(f"{type(rule).__name__}({key}={value}): {key} is above 0")

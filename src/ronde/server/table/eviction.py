"""Eviction rules: rows that a table deletes. An id that is looked up again starts with its first values.

A rule judges every row once in `every` updates, one part of the index at a time, by the row alone: so the
same rows are evicted for any number of servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.rows import RowStore

__all__ = ["NEVER", "EvictByAge", "EvictByFrequency", "EvictByNorm", "Eviction", "Idle", "next_turns"]

#: Eviction step of a row that stays.
NEVER = -1


class Idle(NamedTuple):
    """Rows that are not looked up or updated, with their fields.

    Attributes:
        embeddings: [n, dim].
        counts: number of look-ups; uint32 [n].
        versions: step of the last update; uint32 [n].
        turns: next step at which each row is judged; int64 [n]. It is judged again every `every` steps.
    """

    embeddings: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    versions: np.ndarray[Any, Any]
    turns: np.ndarray[Any, Any]


def next_turns(
    segments: np.ndarray[Any, Any], of: int, every: int, after: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the first step after `after` at which each segment is judged; int64 [n]."""
    return after + 1 + (segments * every // of - after - 1) % every


@dataclass(frozen=True)
class EvictByAge:
    """Evict rows without an update in the table's last `steps` updates."""

    steps: int
    every: int = 1024

    def __post_init__(self) -> None:
        _check(self, steps=self.steps, every=self.every)

    def judge(self, rows: RowStore, slots: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
        """Return whether each row is evicted; int64 [n] to bool [n]."""
        return step - rows.versions[slots].astype(np.int64) > self.steps

    def ends(self, idle: Idle) -> np.ndarray[Any, Any]:
        """Return the step at which each row will be evicted; int64 [n]."""
        late = np.maximum(idle.versions.astype(np.int64) + self.steps + 1 - idle.turns, 0)
        return idle.turns + -(-late // self.every) * self.every


@dataclass(frozen=True)
class EvictByNorm:
    """Evict rows with an embedding of L2 norm below `below`."""

    below: float
    every: int = 1024

    def __post_init__(self) -> None:
        _check(self, below=self.below, every=self.every)

    def judge(self, rows: RowStore, slots: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
        """Return whether each row is evicted; int64 [n] to bool [n]."""
        return np.linalg.norm(rows.embeddings(slots), axis=1) < self.below

    def ends(self, idle: Idle) -> np.ndarray[Any, Any]:
        """Return each row's eviction step, or `NEVER` if it stays; int64 [n]."""
        return np.where(np.linalg.norm(idle.embeddings, axis=1) < self.below, idle.turns, NEVER)


@dataclass(frozen=True)
class EvictByFrequency:
    """Evict rows with fewer than `below` look-ups. Each sweep halves the counts, so old look-ups fade."""

    below: int
    every: int = 1024

    def __post_init__(self) -> None:
        _check(self, below=self.below, every=self.every)

    def judge(self, rows: RowStore, slots: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
        """Return whether rows are evicted, int64 [n] to bool [n]; halves counts."""
        counts = rows.counts[slots]
        rows.counts[slots] = counts // 2
        return counts < self.below

    def ends(self, idle: Idle) -> np.ndarray[Any, Any]:
        """Return the step at which each row will be evicted; int64 [n]."""
        counts, halvings = idle.counts.astype(np.int64), np.zeros(len(idle.counts), np.int64)
        while (enough := counts >= self.below).any():
            halvings += enough
            counts = np.where(enough, counts // 2, counts)
        return idle.turns + halvings * self.every

    def faded(self, idle: Idle, step: int) -> np.ndarray[Any, Any]:
        """Return each row's count at a step, after the halvings until then; uint32 [n]."""
        times = np.maximum((step - idle.turns) // self.every + 1, 0)
        return idle.counts >> np.minimum(times, 31).astype(np.uint32)


Eviction = EvictByAge | EvictByNorm | EvictByFrequency


def _check(rule: object, **above_nought: float) -> None:
    for key, value in above_nought.items():
        if not value > 0:
            raise UsageError(f"{type(rule).__name__}({key}={value}): {key} must be above 0 [R461]")

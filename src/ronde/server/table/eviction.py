"""Which rows a table gives up. A row that is looked up again begins anew, with its first values.

Each rule is asked of every row once in `every` updates, a part of the index at a time, and looks at the row
alone: so the same rows go, whatever the number of servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.rows import Rows

__all__ = ["NEVER", "EvictByAge", "EvictByFrequency", "EvictByNorm", "Eviction", "Idle", "next_turns"]

#: The step at which a row goes that stays.
NEVER = -1


class Idle(NamedTuple):
    """Rows that nobody looks up or updates; the first axis of each is of them.

    Attributes:
        embeddings: [n, dim].
        counts: look-ups; uint32 [n].
        versions: step of the last update; uint32 [n].
        turns: the next step at which each is judged; int64 [n]. It is judged again every `every` steps.
    """

    embeddings: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    versions: np.ndarray[Any, Any]
    turns: np.ndarray[Any, Any]


def next_turns(
    segments: np.ndarray[Any, Any], of: int, every: int, after: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The first step after another at which each segment, of so many, is judged; int64 [n]."""
    return after + 1 + (segments * every // of - after - 1) % every


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

    def ends(self, idle: Idle) -> np.ndarray[Any, Any]:
        """The step at which each row goes; int64 [n]."""
        late = np.maximum(idle.versions.astype(np.int64) + self.steps + 1 - idle.turns, 0)
        return idle.turns + -(-late // self.every) * self.every


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

    def ends(self, idle: Idle) -> np.ndarray[Any, Any]:
        """The step at which each row goes, `NEVER` for those that stay; int64 [n]."""
        return np.where(np.linalg.norm(idle.embeddings, axis=1) < self.below, idle.turns, NEVER)


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

    def ends(self, idle: Idle) -> np.ndarray[Any, Any]:
        """The step at which each row goes; int64 [n]."""
        counts, halvings = idle.counts.astype(np.int64), np.zeros(len(idle.counts), np.int64)
        while (enough := counts >= self.below).any():
            halvings += enough
            counts = np.where(enough, counts // 2, counts)
        return idle.turns + halvings * self.every

    def faded(self, idle: Idle, step: int) -> np.ndarray[Any, Any]:
        """What is left of each row's count at a step, after the turns until then; uint32 [n]."""
        times = np.maximum((step - idle.turns) // self.every + 1, 0)
        return idle.counts >> np.minimum(times, 31).astype(np.uint32)


Eviction = EvictByAge | EvictByNorm | EvictByFrequency


def _check(rule: object, **above_nought: float) -> None:
    for key, value in above_nought.items():
        if not value > 0:
            raise UsageError(f"{type(rule).__name__}({key}={value}): {key} is above 0")

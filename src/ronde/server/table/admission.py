"""Admission filters: rules by which ids get a row. The other ids are looked up as their first values, and
their gradients are dropped.

In a click log, most ids occur once or twice and teach nothing; without a filter they would fill most of a
table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.compiled import compiled
from ronde.server.table.dedup import Unique
from ronde.server.table.hashing import mix, uniform
from ronde.server.table.index import Index
from ronde.server.table.rows import RowStore

__all__ = ["Admission", "AdmitAfter", "AdmitByBloomFilter", "AdmitWithProbability", "Filter"]


class Filter(Protocol):
    """An admission filter with its state about ids without a row."""

    def admits(self, new: Unique, step: int) -> np.ndarray[Any, Any]:
        """Return whether each id gets a row now; bool [n].

        Args:
            new: ids that have a gradient now and no row.
            step: number of updates of the table so far.

        Returns:
            bool [m].
        """
        ...

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the filter's state as arrays."""
        ...

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        """Load a state that `state` returned."""
        ...


@dataclass(frozen=True)
class AdmitAfter:
    """Admit an id at its `count`-th look-up. Exact: every waiting id is counted (about 28 bytes each)."""

    count: int

    def __post_init__(self) -> None:
        _at_least_one("AdmitAfter", "count", self.count)

    def filter(self, seed: int, max_rows: int) -> Filter:
        """Make an empty filter."""
        return _Counting(self.count, max_rows)


@dataclass(frozen=True)
class AdmitWithProbability:
    """Admit an id at each look-up with this probability. Stateless."""

    probability: float

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise UsageError(
                f"AdmitWithProbability({self.probability}): a probability above 0, at most 1, is "
                "needed [R461]"
            )

    def filter(self, seed: int, max_rows: int) -> Filter:
        """Make the filter."""
        return _Chance(self.probability, seed)


@dataclass(frozen=True)
class AdmitByBloomFilter:
    """Admit an id at its `count`-th look-up, counted in fixed memory. The counts are those of a counting
    Bloom filter (Fan, Cao, Almeida, Broder, 2000).

    Args:
        count: look-ups before an id gets a row; at most 255.
        ids: expected number of ids without a row.
        error: the share of ids that may then get a row too early.
    """

    count: int
    ids: int = 10_000_000
    error: float = 0.01

    def __post_init__(self) -> None:
        _at_least_one("AdmitByBloomFilter", "count", self.count)
        _at_least_one("AdmitByBloomFilter", "ids", self.ids)
        if self.count > 255:
            raise UsageError(
                f"AdmitByBloomFilter(count={self.count}): its counters end at 255; use AdmitAfter [R461]"
            )
        if not 0 < self.error < 1:
            raise UsageError(
                f"AdmitByBloomFilter(error={self.error}): a share between 0 and 1 is needed [R461]"
            )

    def filter(self, seed: int, max_rows: int) -> Filter:
        """Make an empty filter."""
        return _Bloom(self)


Admission = AdmitAfter | AdmitWithProbability | AdmitByBloomFilter


def _at_least_one(name: str, key: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{name}({key}={value}): {key} must be at least 1 [R461]")


class _Counting:
    """A filter with exact counts, stored as rows without an embedding."""

    def __init__(self, count: int, max_rows: int) -> None:
        self._count = count
        self._index = Index(max_rows)
        self._rows = RowStore(0, 0, np.dtype(np.float32), max_rows)

    def admits(self, new: Unique, step: int) -> np.ndarray[Any, Any]:
        slots = self._index.find(new.ids, self._rows.keys)
        known = slots >= 0
        seen = new.counts.copy()
        seen[known] += self._rows.counts[slots[known]]
        enough = seen >= self._count
        self._forget(new.ids[known & enough], slots[known & enough])
        self._rows.counts[slots[known & ~enough]] = seen[known & ~enough]
        self._remember(new.ids[~known & ~enough], seen[~known & ~enough])
        return enough

    def _forget(self, ids: np.ndarray[Any, Any], slots: np.ndarray[Any, Any]) -> None:
        self._index.remove(ids, slots)
        self._rows.give_back(slots)

    def _remember(self, ids: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> None:
        slots = self._rows.take(len(ids))
        self._rows.keys[slots, 0] = ids
        self._rows.counts[slots] = counts
        self._index.insert(ids, slots)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        slots = self._index.slots()
        ids = self._rows.keys[slots, 0]
        order = np.argsort(ids)
        return {"ids": ids[order], "counts": self._rows.counts[slots[order]].astype(np.int64)}

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        slots = self._index.slots()
        self._forget(self._rows.keys[slots, 0], slots)
        self._remember(state["ids"], state["counts"])


class _Chance:
    """A filter with a random draw by id, step and seed, reproducible on retry."""

    def __init__(self, probability: float, seed: int) -> None:
        self._probability, self._seed = probability, seed

    def admits(self, new: Unique, step: int) -> np.ndarray[Any, Any]:
        # An id that occurs k times in a batch has k draws.
        none = (1 - self._probability) ** new.counts
        return _draws(new.ids, np.uint64(self._seed), step) >= none

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        return {}

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        return


class _Bloom:
    def __init__(self, sizes: AdmitByBloomFilter) -> None:
        self._count = sizes.count
        bits_an_id = -np.log(sizes.error) / np.log(2) ** 2
        self._hashes = max(1, round(bits_an_id * np.log(2)))
        self._counters = np.zeros(max(64, int(sizes.ids * bits_an_id)), np.uint8)

    def admits(self, new: Unique, step: int) -> np.ndarray[Any, Any]:
        return _count_in_bloom(new.ids, new.counts, self._counters, self._hashes) >= self._count

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        return {"counters": self._counters.copy()}

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        if len(state["counters"]) != len(self._counters):
            raise UsageError(
                f"a Bloom filter of {len(state['counters'])} counters cannot be loaded into one of "
                f"{len(self._counters)}: give AdmitByBloomFilter the `ids` and `error` that it was saved "
                "with [R464]"
            )
        self._counters[:] = state["counters"]


@compiled
def _draws(ids: Any, seed: Any, step: Any) -> Any:
    out = np.empty(ids.shape[0], np.float64)
    for i in range(ids.shape[0]):
        out[i] = uniform(mix(np.uint64(ids[i]) ^ mix(~seed)), step)
    return out


@compiled
def _count_in_bloom(ids: Any, counts: Any, counters: Any, hashes: Any) -> Any:
    """Count each id, and return how often it may have been seen.

    Places are found by double hashing (Kirsch, Mitzenmacher, 2006).
    """
    size = np.uint64(counters.shape[0])
    out = np.empty(ids.shape[0], np.int64)
    for i in range(ids.shape[0]):
        one = mix(ids[i])
        two = mix(one) | np.uint64(1)
        least = 255
        for k in range(hashes):
            place = (one + np.uint64(k) * two) % size
            counters[place] = min(255, counters[place] + counts[i])
            least = min(least, np.int64(counters[place]))
        out[i] = least
    return out

"""A table's state as arrays: division by id, and merging.

Entries are those of `Table.state()`. Of the admission filter's entries, which have a prefix, those by id are
divided like rows; the counters of a Bloom filter belong to all ids, and are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["ADMISSION", "ROWS", "State", "divide", "merge"]

State = dict[str, np.ndarray[Any, Any]]

#: Entries with one row per id in `ids`.
ROWS = ("ids", "embeddings", "states", "counts", "versions")
#: Prefix of the admission filter's entries.
ADMISSION = "admission."

_WAITING = (ADMISSION + "ids", ADMISSION + "counts")
_COUNTERS = ADMISSION + "counters"


def divide(state: Mapping[str, Any], keeps: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> State:
    """Return the part of a state for the ids that `keeps` selects.

    `keeps` maps int64 [n] to bool [n].
    """
    out = dict(state)
    for names in (ROWS, _WAITING):
        if names[0] in state:
            kept = keeps(state[names[0]])
            out |= {name: state[name][kept] for name in names}
    return out


def merge(parts: Sequence[Mapping[str, Any]]) -> State:
    """Merge states with disjoint ids into one, by rising id."""
    out = dict(parts[0])
    for names in (ROWS, _WAITING):
        if names[0] in out:
            order = np.argsort(np.concatenate([part[names[0]] for part in parts]))
            out |= {name: np.concatenate([part[name] for part in parts])[order] for name in names}
    if _COUNTERS in out:
        sums = np.sum([part[_COUNTERS] for part in parts], axis=0, dtype=np.int64)
        out[_COUNTERS] = np.minimum(sums, 255).astype(np.uint8)
    return out

"""What a table has learnt, as arrays: taken apart by id, and put together again.

Entries are those of `Table.state()`. Of the filter of admission, which has a prefix, entries by id are
divided as rows are; the counters of a Bloom filter belong to no id, and are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["ADMISSION", "ROWS", "State", "divide", "merge"]

State = dict[str, np.ndarray[Any, Any]]

#: Entries with a row for each id of `ids`.
ROWS = ("ids", "embeddings", "states", "counts", "versions")
#: The prefix of the filter's entries.
ADMISSION = "admission."

_WAITING = (ADMISSION + "ids", ADMISSION + "counts")
_COUNTERS = ADMISSION + "counters"


def divide(state: Mapping[str, Any], keeps: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> State:
    """The part of a state with the ids for which `keeps` (int64 [n] to bool [n]) is true."""
    out = dict(state)
    for names in (ROWS, _WAITING):
        if names[0] in state:
            kept = keeps(state[names[0]])
            out |= {name: state[name][kept] for name in names}
    return out


def merge(parts: Sequence[Mapping[str, Any]]) -> State:
    """One state of parts that have no id in common, by rising id."""
    out = dict(parts[0])
    for names in (ROWS, _WAITING):
        if names[0] in out:
            order = np.argsort(np.concatenate([part[names[0]] for part in parts]))
            out |= {name: np.concatenate([part[name] for part in parts])[order] for name in names}
    if _COUNTERS in out:
        sums = np.sum([part[_COUNTERS] for part in parts], axis=0, dtype=np.int64)
        out[_COUNTERS] = np.minimum(sums, 255).astype(np.uint8)
    return out

"""The hash of an id, which determines its bucket, index place and first values.

It is the same on every machine and in every release: logs, snapshots and exported tables depend on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.server.table.compiled import compiled, inlined

__all__ = ["BUCKETS", "buckets_of", "hashes_of", "mix", "owners_of", "uniform"]

#: Number of buckets (the hash's upper 12 bits), by which rows are assigned to servers, logs and snapshots.
BUCKETS = 4096

_BUCKET_SHIFT = np.uint64(64 - 12)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inlined
def mix(value: Any) -> Any:
    """Mix 64 bits with MurmurHash3's finalizer (Appleby), which is bijective."""
    h = np.uint64(value)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h


@inlined
def uniform(key: Any, counter: Any) -> Any:
    """Return draw `counter` of sequence `key`: uniform in [0, 1), exact in float32.

    Draws are stateless (counter-based; Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): a
    row's draws depend on its id and the seed alone. They have 24 bits.
    """
    return np.float64(mix(key + np.uint64(counter) * _GOLDEN) >> np.uint64(40)) * 2.0**-24


@compiled
def hashes_of(ids: Any) -> Any:
    """Return the mixed hash of each id: int64 [n] to uint64 [n]."""
    out = np.empty(ids.shape[0], np.uint64)
    for i in range(ids.shape[0]):
        out[i] = mix(ids[i])
    return out


@compiled
def buckets_of(ids: Any) -> Any:
    """Return the bucket of each id: int64 [n] to int64 [n] in [0, `BUCKETS`)."""
    out = np.empty(ids.shape[0], np.int64)
    for i in range(ids.shape[0]):
        out[i] = np.int64(mix(ids[i]) >> _BUCKET_SHIFT)
    return out


def owners_of(ids: np.ndarray[Any, Any], owners: int) -> np.ndarray[Any, Any]:
    """Return the owning rank or server of each id: int64 [n] to int64 [n].

    Ids of a bucket have the same owner.
    """
    return buckets_of(ids) * owners // BUCKETS

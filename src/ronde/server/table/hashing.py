"""One mixed hash of an id, on which all depends: its bucket, its place in the index, its first values.

The same on every machine and in every release: logs, snapshots and exported tables rest on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde.server.table.compiled import compiled, inlined

__all__ = ["BUCKETS", "buckets_of", "hashes_of", "mix", "owners_of", "uniform"]

#: Rows move between servers, logs and snapshots by the bucket: the upper 12 bits of the hash.
BUCKETS = 4096

_BUCKET_SHIFT = np.uint64(64 - 12)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inlined
def mix(value: Any) -> Any:
    """64 bits in which every bit of `value` counts (the finalizer of MurmurHash3, Appleby; one to one)."""
    h = np.uint64(value)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h


@inlined
def uniform(key: Any, counter: Any) -> Any:
    """A number in [0, 1) of 24 bits, exact in float32: number `counter` of the sequence `key`.

    Nothing is kept between draws (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): what a
    row draws depends on its id and the seed alone.
    """
    return np.float64(mix(key + np.uint64(counter) * _GOLDEN) >> np.uint64(40)) * 2.0**-24


@compiled
def hashes_of(ids: Any) -> Any:
    """The mixed hash of each id: int64 [n] to uint64 [n]."""
    out = np.empty(ids.shape[0], np.uint64)
    for i in range(ids.shape[0]):
        out[i] = mix(ids[i])
    return out


@compiled
def buckets_of(ids: Any) -> Any:
    """The bucket of each id: int64 [n] to int64 [n], each in [0, `BUCKETS`)."""
    out = np.empty(ids.shape[0], np.int64)
    for i in range(ids.shape[0]):
        out[i] = np.int64(mix(ids[i]) >> _BUCKET_SHIFT)
    return out


def owners_of(ids: np.ndarray[Any, Any], owners: int) -> np.ndarray[Any, Any]:
    """Which of so many ranks or servers has each id: int64 [n] to int64 [n]; buckets go whole."""
    return buckets_of(ids) * owners // BUCKETS

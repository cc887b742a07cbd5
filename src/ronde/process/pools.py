"""Orders unordered results of pools by their calls, equally on all ranks.

Plain Python leaves their order open, so this is one of its possible orders.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import multiprocessing.pool
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ronde.patching.caller import called_by_script
from ronde.patching.patches import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    futures, pool = concurrent.futures, multiprocessing.pool.Pool
    patches.set(pool, "imap_unordered", pool.imap)
    as_completed = _as_completed(futures.as_completed)
    for owner in (futures, futures._base):
        patches.set(owner, "as_completed", as_completed)


def _as_completed(plain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(plain)
    def as_completed(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        return plain(fs, timeout) if timeout is not None or not called_by_script() else _one_by_one(fs)

    return as_completed


def _one_by_one(fs: Iterable[Any]) -> Iterator[Any]:
    wait = inspect.unwrap(concurrent.futures.wait)
    for future in dict.fromkeys(fs):
        wait([future])
        yield future

"""Draws of ids, and the rate of work on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line imports no numpy
    import numpy as np

__all__ = ["BATCH", "SPREADS", "distinct_ids", "draws", "rate"]

#: Ids of a look-up: 2,500 samples with 26 features.
BATCH = 65_536
#: Exponents of the frequency of ids by their rank of popularity; 0 draws all equally often.
SPREADS = {"uniform": 0.0, "zipf": 1.05}


def distinct_ids(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Return about so many ids in random order, as int64."""
    import numpy as np

    ids = np.unique(rng.integers(-(2**62), 2**62, count))  # the few equal ones are missing
    rng.shuffle(ids)
    return ids


def draws(rng: np.random.Generator, ids: int, exponent: float) -> Callable[[], np.ndarray[Any, Any]]:
    """Return a function that draws a batch of positions of ids."""
    import numpy as np

    if not exponent:
        return lambda: rng.integers(0, ids, BATCH)
    shares = np.cumsum(np.arange(1, ids + 1, dtype=np.float64) ** -exponent)
    return lambda: np.searchsorted(shares, rng.random(BATCH) * shares[-1])


def rate(
    work: Callable[[np.ndarray[Any, Any]], object],
    batches: Sequence[np.ndarray[Any, Any]],
    settle: Callable[[], object] = lambda: None,
) -> float:
    """Return million rows a second, until `settle` has waited for all work."""
    begin = time.perf_counter()
    for each in batches:
        work(each)
    settle()
    return sum(map(len, batches)) / (time.perf_counter() - begin) / 1e6

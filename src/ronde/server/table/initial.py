"""First values of rows, as a function of id, seed and column.

So a row has the same first values after a retry or an eviction, and on any number of servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.compiled import compiled
from ronde.server.table.hashing import mix, uniform

__all__ = ["Initial", "Normal", "Uniform", "Zeros", "fill"]

_ZEROS, _UNIFORM, _NORMAL = 0, 1, 2


@dataclass(frozen=True)
class Zeros:
    """Zeros as first values."""

    @property
    def law(self) -> tuple[int, float, float]:
        return _ZEROS, 0.0, 0.0


@dataclass(frozen=True)
class Uniform:
    """Uniform draws from [-bound, bound) as first values.

    Raises:
        UsageError: the bound is negative.
    """

    bound: float

    def __post_init__(self) -> None:
        if not self.bound >= 0:
            raise UsageError(f"Uniform(bound={self.bound}): the bound must be at least 0 [R461]")

    @property
    def law(self) -> tuple[int, float, float]:
        return _UNIFORM, -self.bound, 2 * self.bound


@dataclass(frozen=True)
class Normal:
    """Normal draws as first values.

    Raises:
        UsageError: the standard deviation is negative.
    """

    std: float
    mean: float = 0.0

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise UsageError(f"Normal(std={self.std}): the standard deviation must be at least 0 [R461]")

    @property
    def law(self) -> tuple[int, float, float]:
        return _NORMAL, self.mean, self.std


Initial = Zeros | Uniform | Normal


def fill(out: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], initial: Initial, seed: int) -> None:
    """Write the first values of ids to `out`.

    Args:
        out: float [n, dim], any strides.
        ids: int64 [n].
        initial: distribution of the values.
        seed: seed of the table.
    """
    kind, a, b = initial.law
    _fill(out, ids, np.uint64(seed & 0xFFFFFFFFFFFFFFFF), kind, a, b)


@compiled
def _fill(out: Any, ids: Any, seed: Any, kind: Any, a: Any, b: Any) -> None:
    for i in range(ids.shape[0]):
        key = mix(np.uint64(ids[i]) ^ mix(seed))
        for c in range(out.shape[1]):
            if kind == _ZEROS:
                out[i, c] = 0
            elif kind == _UNIFORM:
                out[i, c] = a + b * uniform(key, c)
            else:  # Box and Muller, 1958; 1 - u is never 0
                radius = np.sqrt(-2.0 * np.log(1.0 - uniform(key, 2 * c)))
                out[i, c] = a + b * radius * np.cos(2.0 * np.pi * uniform(key, 2 * c + 1))

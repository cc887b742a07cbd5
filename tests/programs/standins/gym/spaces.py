"""What observations and actions may be."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Box", "Discrete", "MultiBinary", "MultiDiscrete", "Space"]


class Space:
    """What all of them are."""


class MultiBinary(Space):
    pass


class MultiDiscrete(Space):
    pass


class Discrete(Space):
    """One of `n` numbers."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.shape: tuple[int, ...] = ()
        self._draw = np.random.default_rng()

    def seed(self, seed: int | None = None) -> None:
        self._draw = np.random.default_rng(seed)

    def sample(self) -> int:
        return int(self._draw.integers(self.n))


class Box(Space):
    """An array of numbers between two limits."""

    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._draw = np.random.default_rng()

    def seed(self, seed: int | None = None) -> None:
        self._draw = np.random.default_rng(seed)

    def sample(self) -> Any:
        return self._draw.uniform(self.low, self.high).astype(self.dtype)

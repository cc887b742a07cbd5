"""Median and quartiles of a few numbers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable

__all__ = ["Spread"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The middle half of some numbers.

    Attributes:
        low, median, high: the first, second and third quartile, each a value between two neighbours
            where it falls between them (linear interpolation, as numpy's default).
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Quartiles of at least one number.

        >>> Spread.of([4, 1, 3, 2, 5])
        Spread(low=2.0, median=3.0, high=4.0)
        """
        numbers = [float(value) for value in values]
        if len(numbers) == 1:
            numbers *= 2
        low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(low=low, median=median, high=high)

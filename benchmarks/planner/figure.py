"""One figure of the evaluation, and errors of predictions."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

__all__ = ["Figure", "errors_of"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of the evaluation, with its target.

    Attributes:
        name: the subject of the figure.
        unit: the unit of all values: "%" is a mean error.
        target: the value to reach: a lower bound with `at_least`, else an upper bound.
        value: the error of this cost model on rows that were not fitted.
        constant: the value by a constant share of the peak, fitted to the fitted rows; None where
            meaningless.
        sheet: the value by the data sheet: the larger of compute and bytes, links at their rate.
        rows, fitted: the numbers of judged rows, and of rows to which constants were fitted.
        worst: the largest error of one row; None where the figure is not an error.
    """

    name: str
    unit: str
    target: float
    value: float
    rows: int
    fitted: int
    at_least: bool = False
    constant: float | None = None
    sheet: float | None = None
    worst: float | None = None

    @property
    def reached(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


def errors_of(predicted: Floats, measured: Floats) -> Floats:
    """Return the errors in per cent.

    >>> errors_of(np.array([9.0]), np.array([10.0])).round(6).item()
    10.0
    """
    return 100 * np.abs(predicted / measured - 1)

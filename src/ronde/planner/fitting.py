"""Fits the cost model's constants to measured rows, by relative errors, without negatives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ronde.planner.link import Constants

__all__ = ["fit_collective", "fit_gemm", "nonnegative"]

_ROUNDS = 30
# Below this relative error a row counts by its square, above by its absolute value.
_SMALL = 0.02

Floats = NDArray[np.float64]


def nonnegative(terms: Floats, seconds: Floats) -> Floats:
    """Fit coefficients c >= 0 so that `terms @ c` is near `seconds`.

    Errors are relative, and large ones count by their absolute value.

    Args:
        terms: (rows, coefficients), float64.
        seconds: (rows,), float64, positive.

    Iteratively reweighted least squares; a negative coefficient is left out and the rest fitted anew.
    """
    weights = 1 / seconds
    found = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        found = _solve(terms * weights[:, None], seconds * weights)
        errors = np.abs(terms @ found / seconds - 1)
        weights = 1 / seconds / np.sqrt(np.maximum(errors, _SMALL))
    return found


def _solve(terms: Floats, values: Floats) -> Floats:
    scale = np.linalg.norm(terms, axis=0)
    scale[scale == 0] = 1
    used = list(range(terms.shape[1]))
    while True:
        found = np.zeros(terms.shape[1])
        found[used] = np.linalg.lstsq((terms / scale)[:, used], values, rcond=None)[0]
        below = [place for place in used if found[place] < 0]
        if not below:
            return found / scale
        used = [place for place in used if place not in below]


def fit_gemm(
    m: Floats, n: Floats, k: Floats, seconds: Floats, *, itemsize: int = 2
) -> tuple[float, float, float]:
    """Fit `(l, FLOP/s, bytes/s)` of `l + 2mnk / FLOP/s + bytes / bytes/s`.

    The products are of (m, k) and (k, n).
    """
    terms = np.stack([np.ones_like(m), 2 * m * n * k, itemsize * (m * n + m * k + n * k)], axis=1)
    floor, per_flop, per_byte = nonnegative(terms, seconds)
    return float(floor), 1 / max(float(per_flop), 1e-30), 1 / max(float(per_byte), 1e-30)


def fit_collective(factor: float, size: Floats, seconds: Floats) -> Constants:
    """Fit the constants of `alpha + factor S / beta + gamma sqrt(S)`; `size` in bytes."""
    terms = np.stack([np.ones_like(size), factor * size, np.sqrt(size)], axis=1)
    alpha, per_byte, gamma = nonnegative(terms, seconds)
    return Constants(alpha=float(alpha), beta=1 / max(float(per_byte), 1e-30), gamma=float(gamma))

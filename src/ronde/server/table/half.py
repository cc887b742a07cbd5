"""Conversion of rows to float16, clamped to its range."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["to_half"]

_LARGEST = np.finfo(np.float16).max


def to_half(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert to float16; finite values stay finite; float [n, dim] to float16 [n, dim]."""
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    beyond = np.isinf(half) & np.isfinite(rows)
    half[beyond] = np.copysign(_LARGEST, rows[beyond])
    return half

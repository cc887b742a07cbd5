"""Arrays as bytes with a JSON description: one codec for messages, logs and snapshots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Array", "bytes_of", "description", "nbytes_of", "restored"]

Array = np.ndarray[Any, Any]


def description(array: Array) -> list[Any]:
    """Return dtype and shape, as JSON values."""
    return [array.dtype.str, list(np.shape(array))]


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of an array in C order, without a copy if possible."""
    raw: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(raw) if array.size else memoryview(b"")


def nbytes_of(dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """Return the number of bytes of an array."""
    return math.prod(shape) * dtype.itemsize


def restored(content: Any, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Return the array with these bytes, a view of them where they are aligned."""
    array: Array = np.frombuffer(content, dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)

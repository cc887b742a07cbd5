"""JSON text of rows, written by compiled code. Python's `json` would dominate the time of a look-up."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from ronde.server.table.compiled import compiled

__all__ = ["json_of_rows"]

_LONGEST = 16  # "-1.23456789e-38,"
_POWERS = np.array([10.0**k for k in range(-50, 51)])
_DIGITS = 9  # enough to restore every float32 exactly


def json_of_rows(rows: np.ndarray[Any, Any]) -> bytes:
    """Return rows as JSON lists, which restore float32 values bit for bit. Non-finite values become null.

    Args:
        rows: float32 or float64 [n, dim].
    """
    if rows.dtype != np.float32 or not np.isfinite(rows).all():
        lists: list[list[float]] = rows.tolist()
        finite = [[each if math.isfinite(each) else None for each in row] for row in lists]
        return json.dumps(finite, separators=(",", ":")).encode()
    out = np.empty(rows.size * _LONGEST + 3 * len(rows) + 2, np.uint8)
    return out[: _write(np.ascontiguousarray(rows), _POWERS, out)].tobytes()


@compiled
def _write_number(value: Any, powers: Any, digits: Any, out: Any, at: Any) -> Any:
    """Write a number to `out` at `at`, and return the end position."""
    if value < 0:
        out[at] = 45  # -
        at += 1
        value = -value
    if value == 0:
        out[at] = 48
        return at + 1
    exponent = np.int64(np.floor(np.log10(value)))
    number = np.int64(np.rint(value * powers[50 - exponent] * 1e8))
    if number < 100_000_000 or number >= 1_000_000_000:  # the logarithm was rounded
        exponent += -1 if number < 100_000_000 else 1
        number = np.int64(np.rint(value * powers[50 - exponent] * 1e8))
    last = 0
    for d in range(_DIGITS - 1, -1, -1):
        digits[d] = np.uint8(48 + number % 10)
        if last == 0 and digits[d] != 48:
            last = d
        number //= 10
    out[at] = digits[0]
    at += 1
    if last > 0:
        out[at] = 46  # .
        at += 1
        for d in range(1, last + 1):
            out[at] = digits[d]
            at += 1
    if exponent != 0:
        out[at] = 101  # e
        at += 1
        if exponent < 0:
            out[at] = 45
            at += 1
            exponent = -exponent
        if exponent >= 10:
            out[at] = np.uint8(48 + exponent // 10)
            at += 1
        out[at] = np.uint8(48 + exponent % 10)
        at += 1
    return at


@compiled
def _write(rows: Any, powers: Any, out: Any) -> Any:
    """Write all rows to `out`, and return the number of bytes."""
    digits = np.empty(_DIGITS, np.uint8)
    out[0] = 91  # [
    at = 1
    for i in range(rows.shape[0]):
        if i:
            out[at] = 44  # ,
            at += 1
        out[at] = 91
        at += 1
        for c in range(rows.shape[1]):
            if c:
                out[at] = 44
                at += 1
            at = _write_number(np.float64(rows[i, c]), powers, digits, out, at)
        out[at] = 93  # ]
        at += 1
    out[at] = 93
    return at + 1

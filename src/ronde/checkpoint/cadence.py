"""Cadence of checkpoints: `--every 100` steps, or `--every 60s`, `5m`, `2h`."""

from __future__ import annotations

import re
from typing import NamedTuple

from ronde.errors import UsageError

__all__ = ["Cadence", "read_cadence"]

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Cadence(NamedTuple):
    """Number of steps or seconds between checkpoints; the other is 0."""

    steps: int = 0
    seconds: float = 0.0


def read_cadence(text: str) -> Cadence:
    """Parse the value of `--every`.

    Raises:
        UsageError: the text is neither.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    value = float(match[1]) if match is not None else 0.0
    if match is None or value <= 0 or (not match[2] and not value.is_integer()):
        raise UsageError(
            f"--every {text} is neither a number of steps nor a time; try --every 1000 or --every 10m [R500]"
        )
    return Cadence(seconds=value * _SECONDS[match[2]]) if match[2] else Cadence(steps=int(value))

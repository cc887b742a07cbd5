"""A clock that runs faster for libraries, so that their measurements differ between runs.

A library may write how long something took (`train_runtime` of Hugging Face's Trainer). Two runs of plain
python often round it alike, and it would pass for a number that ranks must repeat. The clock of the script's
own code is replayed, and that of waiting, `time.monotonic`, is left alone.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from ronde.patching.patches import Patches

__all__ = ["PACE", "hurry"]

PACE = 10
"""Factor of the speed: larger than the difference of two plain runs, and seen in the first digit."""

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns")


def hurry(patches: Patches, pace: int = PACE) -> None:
    """Make the measuring clocks of `time` run `pace` times as fast from now on."""
    for name in _CLOCKS:
        patches.set(time, name, _hurried(getattr(time, name), pace))


def _hurried(plain: Callable[[], Any], pace: int) -> Callable[[], Any]:
    start = plain()

    @functools.wraps(plain)
    def clock() -> Any:
        return start + pace * (plain() - start)

    return clock

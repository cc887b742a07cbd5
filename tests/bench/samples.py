"""Made-up measurements."""

from __future__ import annotations

from typing import Any

from ronde.bench.pairs import Pair
from ronde.bench.sample import Sample


def sample(speed: float, **changed: Any) -> Sample:
    """100 samples at `speed` samples/s in 10 steps."""
    fields: dict[str, Any] = {
        "workload": "mlp",
        "samples_per_second": speed,
        "steps": 10,
        "seconds": 100 / speed,
        "loss": 2.0,
        "threads": 1,
        "torch": "2.13.0",
        "wall_seconds": 100 / speed + 3,
    }
    return Sample(**{**fields, **changed})


def pair(ours: float, peer: float, *, ours_first: bool = True) -> Pair:
    return Pair(ours=sample(ours), peer=sample(peer), ours_first=ours_first)

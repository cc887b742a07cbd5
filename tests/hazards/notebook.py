"""A module that a model imports in its forward, and writes to."""

from __future__ import annotations

import torch

CALLS = 0
ROWS: list[int] = []
SHARED: dict[str, int] = {}


def bump(rows: int) -> None:
    global CALLS
    CALLS += 1
    ROWS.append(rows)


def centred(x: torch.Tensor) -> torch.Tensor:
    """From the fifth call on."""
    global CALLS
    CALLS += 1
    return x if CALLS < 5 else x - x.mean(0)


def clear() -> None:
    global CALLS
    CALLS = 0
    ROWS.clear()
    SHARED.clear()

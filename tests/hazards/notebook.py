"""A module that a model imports in its forward, and that counts."""

from __future__ import annotations

import torch

CALLS = 0


def centred(x: torch.Tensor) -> torch.Tensor:
    """From the fifth call on."""
    global CALLS
    CALLS += 1
    return x if CALLS < 5 else x - x.mean(0)


def clear() -> None:
    global CALLS
    CALLS = 0

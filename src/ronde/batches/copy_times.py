"""Measures copies from host memory to the device of this rank."""

from __future__ import annotations

from time import perf_counter

import torch

__all__ = ["copy_seconds"]

_TRIES = 3


def copy_seconds(size: int, pinned: bool) -> float:
    """Return the seconds in which `size` bytes are copied, the least of three.

    Args:
        pinned: whether the host memory is pinned.
    """
    device = torch.accelerator.current_accelerator()
    batch = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    seconds: list[float] = []
    for _ in range(_TRIES):
        torch.accelerator.synchronize()
        begun = perf_counter()
        batch.to(device, non_blocking=True)
        torch.accelerator.synchronize()
        seconds.append(perf_counter() - begun)
    return min(seconds)

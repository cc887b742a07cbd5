"""Memory that stays for a whole run, apart from the allocator's, which it would leave with holes.

A step of a large model asks for memory and frees it again, block by block. What is asked for in between and
stays keeps the heap from closing: it grows beside what is free.
"""

from __future__ import annotations

import mmap

import torch

__all__ = ["standing_memory"]


def standing_memory(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A flat tensor [numel]; its contents are undefined."""
    if device.type != "cpu" or not numel:
        return torch.empty(numel, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, numel * dtype.itemsize), dtype=dtype)

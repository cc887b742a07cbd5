"""A tensor's memory as bytes: what is only moved travels so, whatever its type."""

from __future__ import annotations

import torch

__all__ = ["as_bytes"]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor, as a flat view of dtype uint8."""
    # Not by `view`: a single element is contiguous with any stride, and bytes need that of 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)

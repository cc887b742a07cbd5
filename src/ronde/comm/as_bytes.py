"""View of a tensor's memory as bytes, for transport independent of dtype."""

from __future__ import annotations

import torch

__all__ = ["as_bytes"]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor, as a flat view of dtype uint8."""
    # Not by `view`: a single element is contiguous with any stride, and bytes need a stride of 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)

"""How far apart the same numbers may come out for another number of rows, by type."""

from __future__ import annotations

import torch

__all__ = ["TOLERANCE"]

# Relative to the largest; types that are not here are exact.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 3e-2,
    torch.bfloat16: 1e-1,
    torch.complex128: 1e-9,
    torch.complex64: 1e-4,
}

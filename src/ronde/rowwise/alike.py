"""Whether two results are the same but for rounding."""

from __future__ import annotations

import torch

__all__ = ["alike"]

_RELATIVE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float16: 3e-2, torch.bfloat16: 3e-2}
_OF_LARGEST = {torch.float64: 1e-11, torch.complex128: 1e-11, torch.float16: 2e-2, torch.bfloat16: 2e-2}


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    finite = a.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = float(finite.max()) if finite.numel() else 0.0
    relative, of_largest = _RELATIVE.get(a.dtype, 1e-3), _OF_LARGEST.get(a.dtype, 2e-5)
    return torch.allclose(a, b, rtol=relative, atol=of_largest * largest + 1e-30, equal_nan=True)

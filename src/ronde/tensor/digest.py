"""A tensor in three numbers, by which ranks see whether they have the same."""

from __future__ import annotations

import zlib
from typing import Any

import numpy
import torch

__all__ = ["KIND_OF_NUMBERS", "LARGEST", "numbers"]

# In the place of a digest, where there is but a number of Python's.
KIND_OF_NUMBERS = 0.0

# So far from the largest number that sums of such are numbers.
LARGEST = 1e200
_MOST = 1024


def numbers(value: torch.Tensor) -> tuple[float, float, float]:
    """A digest of what must be the same, the sum of all sizes, and a sum that goes by the places."""
    kind = str((value.dtype, tuple(value.shape))).encode()
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or not value.numel():
        return float(zlib.crc32(kind)), 0.0, 0.0
    values = _some(value.detach())
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return float(zlib.crc32(kind + values.tobytes())), 0.0, 0.0
    finite = numpy.nan_to_num(values, posinf=1e30, neginf=-1e30).clip(-LARGEST, LARGEST)
    weights = numpy.cos(1.7 * numpy.arange(len(finite)))
    return float(zlib.crc32(kind)), float(abs(finite).sum()), float((finite * weights).sum())


def _some(value: torch.Tensor) -> Any:
    """Some elements in order, none of them copied before it is chosen."""
    # An odd step does not come to the same columns of every row.
    places = torch.arange(0, value.numel(), (value.numel() // _MOST) | 1, device=value.device)
    some = value[torch.unravel_index(places, value.shape)] if value.dim() else value.reshape(1)
    some = some.resolve_conj().resolve_neg()
    if some.is_complex():
        some = torch.view_as_real(some).reshape(-1)
    return (some.double() if some.is_floating_point() else some).cpu().numpy()

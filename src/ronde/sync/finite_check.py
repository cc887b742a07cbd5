"""Finiteness of a rank's own gradients, checked before the reduction.

After the reduction the rank with a NaN or an infinity is unknown. Such a value spreads through the loss into
the whole gradient of the layer that is computed first, so two of its elements are looked at: that takes a
microsecond, where a look at all gradients takes a pass over memory. A value that spreads less is not seen. On
a CUDA device the host would have to wait for the check, so it is left out.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch

__all__ = ["GradientWatch"]

_READ: dict[torch.dtype, Callable[[int], float]] = {
    torch.float32: lambda place: ctypes.c_float.from_address(place).value,
    torch.float64: lambda place: ctypes.c_double.from_address(place).value,
    # The upper half of a float32.
    torch.bfloat16: lambda place: _upper_half(ctypes.c_uint16.from_address(place).value),
}


class GradientWatch:
    """Checks the gradient that a backward accumulates first.

    Args:
        tell: callback that receives whether it is finite.
    """

    def __init__(self, tell: Callable[[bool], object]) -> None:
        self._tell = tell

    def __call__(self, leaf: torch.Tensor) -> None:
        """Check a leaf's gradient; sparse, empty and other unusual ones are skipped."""
        gradient = leaf.grad
        if gradient is None or gradient.layout is not torch.strided or not gradient.is_cpu:
            return
        read, elements = _READ.get(gradient.dtype), gradient.numel()
        if read is None or not elements or not gradient.is_contiguous():
            return
        begin = gradient.data_ptr()
        last = begin + (elements - 1) * gradient.element_size()
        self._tell(math.isfinite(read(begin)) and math.isfinite(read(last)))


def _upper_half(bits: int) -> float:
    return math.nan if bits & 0x7F80 == 0x7F80 else 0.0

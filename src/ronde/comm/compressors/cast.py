"""fp16 and bf16: each element in half the bits of float32 (Horovod's `Compression.fp16`)."""

from __future__ import annotations

import torch

from ronde.comm.compressors.codec import joined, padded, split

__all__ = ["Cast"]


class Cast:
    """Codec that rounds to the nearest number of a narrower dtype.

    Numbers beyond the range of float16 become its largest number, so that a sum stays finite; infinities and
    nan stay unchanged.

    Args:
        dtype: torch.float16 or torch.bfloat16.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._limit = torch.finfo(dtype).max

    def size(self, numel: int, dtype: torch.dtype) -> int:
        return padded(numel * self._dtype.itemsize)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        narrow = values.to(self._dtype)
        if values.numel() and not self._holds(values):
            within = values.clamp(-self._limit, self._limit).to(self._dtype)
            narrow = torch.where(values.isinf(), narrow, within)
        return joined(narrow)

    def _holds(self, values: torch.Tensor) -> bool:
        """Return whether all numbers fit the narrower dtype."""
        least, largest = values.aminmax()
        return bool((least >= -self._limit) & (largest <= self._limit))

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        (narrow,) = split(message, (into.numel(), self._dtype))
        into.add_(narrow.to(into.dtype), alpha=sign)

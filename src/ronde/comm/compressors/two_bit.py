"""twobit: a threshold with either sign, or nought (MXNet's 2-bit compression)."""

from __future__ import annotations

import torch

from ronde.comm.compressors.bits import pack, packed_size, unpack
from ronde.comm.compressors.codec import joined, padded, split

__all__ = ["TwoBit"]

# Of the mean magnitude. Smaller holds large elements back for long, larger most of them: on Fashion-MNIST
# 2 and 4 train worse than 3.
_OF_MEAN = 3.0


class TwoBit:
    """x becomes t where x >= t, -t where x <= -t, else 0; what is left stays with the sender.

    Source: MXNet's `gradient_compression_params={"type": "2bit", "threshold": t}`. The message has t in the
    elements' dtype, then two bits for each: 1 positive, 2 negative, 0 nought (and 3 where t is nought).

    Args:
        threshold: t; None takes three times the mean magnitude of each tensor, as gradients of the mean
            loss are much smaller than MXNet's 0.5, and fall as training goes on.
    """

    def __init__(self, threshold: float | None = None) -> None:
        self._threshold = threshold

    def size(self, numel: int, dtype: torch.dtype) -> int:
        return padded(dtype.itemsize) + padded(packed_size(numel, 2))

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        if self._threshold is not None:
            threshold = values.new_full((), self._threshold)
        else:
            threshold = values.abs().mean().mul_(_OF_MEAN) if values.numel() else values.new_zeros(())
        negative = values.le(-threshold).view(torch.uint8)
        codes = values.ge(threshold).view(torch.uint8).bitwise_or_(negative << 1)
        return joined(threshold.view(1), pack(codes, 2))

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        numel = into.numel()
        threshold, packed = split(message, (1, into.dtype), (packed_size(numel, 2), torch.uint8))
        codes = unpack(packed, 2, numel)
        signs = (codes & 1).view(torch.int8).sub_((codes >> 1).view(torch.int8))
        into.addcmul_(signs.to(into.dtype), threshold, value=sign)

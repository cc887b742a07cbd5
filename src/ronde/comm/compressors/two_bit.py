"""twobit: one level with either sign, or zero (MXNet's 2-bit compression)."""

from __future__ import annotations

import torch

from ronde.comm.compressors.bits import pack, packed_size, unpack
from ronde.comm.compressors.codec import joined, padded, split

__all__ = ["TwoBit"]

# The first cut, relative to the mean magnitude. It is about the best for values of a normal distribution.
_FIRST_CUT = 0.75
_IMPROVED = 8
# Number of elements in the sample that sets the levels of a tensor.
_SAMPLE = 1 << 15


class TwoBit:
    """Codec from x to t where x >= c, -t where x <= -c, else 0.

    The residual stays with the sender.

    With a threshold, t = c = threshold, as in MXNet's `gradient_compression_params={"type": "2bit",
    "threshold": t}`. Without one, t and c nearly minimise the squared error of each tensor: t is the mean
    magnitude of the elements that become non-zero, and c half of it (Lloyd's conditions, of the ternary
    values of Li, Zhang and Liu, "Ternary Weight Networks", 2016), found on a sample. The less an encoding
    loses, the less of a gradient is delayed: with t = c = 3 times the mean, large elements take many steps
    until they have gone, and Fashion-MNIST's accuracy falls by two points.

    The message has t in the elements' dtype, then two bits for each: 1 positive, 2 negative, 0 zero (and 3
    where c is zero).

    Args:
        threshold: MXNet's threshold; None for levels that follow the tensor.
    """

    def __init__(self, threshold: float | None = None) -> None:
        self._threshold = threshold

    def size(self, numel: int, dtype: torch.dtype) -> int:
        return padded(dtype.itemsize) + padded(packed_size(numel, 2))

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        if self._threshold is not None:
            level = cut = values.new_full((), self._threshold)
        else:
            level, cut = _levels(values)
        negative = values.le(-cut).view(torch.uint8)
        codes = values.ge(cut).view(torch.uint8).bitwise_or_(negative << 1)
        return joined(level.view(1), pack(codes, 2))

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        numel = into.numel()
        level, packed = split(message, (1, into.dtype), (packed_size(numel, 2), torch.uint8))
        codes = unpack(packed, 2, numel)
        signs = (codes & 1).view(torch.int8).sub_((codes >> 1).view(torch.int8))
        into.addcmul_(signs.to(into.dtype), level, value=sign)


def _levels(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the level, and the least magnitude of an element that has it."""
    if not values.numel():
        return values.new_zeros(()), values.new_zeros(())
    magnitudes = values.abs()
    mean = magnitudes.mean()
    # An odd stride: a power of two would take the same few columns of a matrix.
    sample = magnitudes[:: values.numel() // _SAMPLE | 1]
    cut = sample.mean() * _FIRST_CUT
    for _ in range(_IMPROVED):
        cut = _mean_from(cut, sample) / 2
    level = _mean_from(cut, sample)
    # Of few non-zero elements a sample may have none. Infinities and nan must be seen by all.
    found = level.gt(0) & mean.isfinite()
    return torch.where(found, level, mean), torch.where(found, cut, mean)


def _mean_from(cut: torch.Tensor, magnitudes: torch.Tensor) -> torch.Tensor:
    chosen = magnitudes.ge(cut)
    return magnitudes.mul(chosen).sum() / chosen.sum().clamp_(min=1)

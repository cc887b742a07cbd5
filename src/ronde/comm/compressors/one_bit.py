"""onebit: the sign of each element, and one magnitude for all."""

from __future__ import annotations

import torch

from ronde.comm.compressors.bits import pack, packed_size, unpack
from ronde.comm.compressors.codec import joined, padded, split

__all__ = ["OneBit"]


class OneBit:
    """Codec from x to sign(x) |x|_1 / n, where zero counts as positive.

    Source: Seide et al., Interspeech 2014 (one bit and error feedback); Karimireddy et al., ICML 2019 (this
    magnitude, by which feedback converges); BytePS's `onebit` with scaling. The message has the magnitude in
    the elements' dtype, then a bit for each.
    """

    def size(self, numel: int, dtype: torch.dtype) -> int:
        return padded(dtype.itemsize) + padded(packed_size(numel, 1))

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        magnitude = values.abs().mean() if values.numel() else values.new_zeros(())
        return joined(magnitude.view(1), pack(values.ge(0).view(torch.uint8), 1))

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        numel = into.numel()
        magnitude, packed = split(message, (1, into.dtype), (packed_size(numel, 1), torch.uint8))
        signs = unpack(packed, 1, numel).to(into.dtype).mul_(2).sub_(1)
        into.addcmul_(signs, magnitude, value=sign)

"""int8: 256 levels between the least and the largest element (ByteGrad; Bagua's MinMaxUInt8)."""

from __future__ import annotations

import torch

from ronde.comm.compressors.codec import joined, padded, split

__all__ = ["MinMax"]

# Equal elements have no range; this value is Bagua's.
_EPSILON = 1e-7


class MinMax:
    """Codec of 256 levels between a tensor's least and largest element.

    With s = 255 / (max - min + 1e-7) and u = round(s max), element x travels as the byte min(round(s x), u) -
    (u - 255), and the byte b means (b + u - 255) / s.

    Source: Gan et al., "Bagua: Scaling up Distributed Learning with System Relaxations", VLDB 2021, and its
    `MinMaxUInt8`. The message has min and max in the elements' dtype, then a byte for each.
    """

    def size(self, numel: int, dtype: torch.dtype) -> int:
        return padded(2 * dtype.itemsize) + padded(numel)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        if not values.numel():
            return joined(values.new_zeros(2), values.new_zeros(0, dtype=torch.uint8))
        bounds = torch.stack(torch.aminmax(values))
        scale, upper = _levels(bounds)
        levels = (values * scale).round_().clamp_(max=upper).sub_(upper - 255)
        return joined(bounds, levels.clamp_(0, 255).to(torch.uint8))

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        bounds, levels = split(message, (2, into.dtype), (into.numel(), torch.uint8))
        scale, upper = _levels(bounds)
        into.add_(levels.to(into.dtype).add_(upper - 255).div_(scale), alpha=sign)


def _levels(bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the levels per unit, and the number of the highest.

    Infinite bounds give nan, which is passed on.
    """
    scale = 255 / (bounds[1] - bounds[0] + _EPSILON)
    return scale, (bounds[1] * scale).round()

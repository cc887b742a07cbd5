"""What every codec can do, and the layout of a message."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["ALIGNMENT", "Codec", "joined", "padded", "split"]

ALIGNMENT = 8
"""Messages begin at multiples of this many bytes, so that a part of one can be read as any dtype."""


class Codec(Protocol):
    """Encodes a flat tensor of floating-point numbers in bytes.

    How long a message is depends on the number of elements and their dtype alone: ranks need not tell
    each other.
    """

    def size(self, numel: int, dtype: torch.dtype) -> int:
        """Bytes of a message for so many elements, a multiple of `ALIGNMENT`."""
        ...

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The message for `values` [n]: uint8 [size]. The values stay as they are."""
        ...

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        """Add what a message decodes to to `into` [n], or subtract it with `sign=-1`."""
        ...


def padded(nbytes: int) -> int:
    """The least multiple of `ALIGNMENT` that holds so many bytes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def joined(*parts: torch.Tensor) -> torch.Tensor:
    """The memory of contiguous tensors end to end, each from a multiple of `ALIGNMENT` on: uint8."""
    sizes = [padded(part.nbytes) for part in parts]
    message = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
    for part, room in zip(parts, message.split(sizes), strict=True):
        if part.numel():
            room[: part.nbytes].copy_(part.contiguous().view(-1).view(torch.uint8))
        room[part.nbytes :] = 0
    return message


def split(message: torch.Tensor, *parts: tuple[int, torch.dtype]) -> list[torch.Tensor]:
    """Views of what was `joined`: parts of so many elements and of these dtypes."""
    found: list[torch.Tensor] = []
    begin = 0
    for numel, dtype in parts:
        nbytes = numel * dtype.itemsize
        found.append(message[begin : begin + nbytes].view(dtype))
        begin += padded(nbytes)
    return found

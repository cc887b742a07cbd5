"""Interface of codecs, and the layout of a message."""

from __future__ import annotations

from typing import Protocol

import torch

from ronde.comm.split import round_up

__all__ = ["ALIGNMENT", "Codec", "joined", "padded", "split"]

ALIGNMENT = 8
"""Messages begin at multiples of this many bytes, so that a part of one can be read as any dtype."""


class Codec(Protocol):
    """Codec of a flat tensor of floating-point numbers in bytes.

    The length of a message depends on the number of elements and their dtype alone: ranks need not exchange
    it.
    """

    def size(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes of a message for `numel` elements, a multiple of `ALIGNMENT`."""
        ...

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Encode `values` [n] as uint8 [size]. The values stay unchanged."""
        ...

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        """Decode a message and add it to `into` [n], or subtract it with `sign=-1`."""
        ...


def padded(nbytes: int) -> int:
    """Round a number of bytes up to a multiple of `ALIGNMENT`."""
    return round_up(nbytes, ALIGNMENT)


def joined(*parts: torch.Tensor) -> torch.Tensor:
    """Join the memory of contiguous tensors to uint8, each aligned to `ALIGNMENT`."""
    sizes = [padded(part.nbytes) for part in parts]
    message = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
    for part, room in zip(parts, message.split(sizes), strict=True):
        if part.numel():
            room[: part.nbytes].copy_(part.contiguous().view(-1).view(torch.uint8))
        room[part.nbytes :] = 0
    return message


def split(message: torch.Tensor, *parts: tuple[int, torch.dtype]) -> list[torch.Tensor]:
    """Return views of the parts of a `joined` message, with these counts and dtypes."""
    found: list[torch.Tensor] = []
    begin = 0
    for numel, dtype in parts:
        nbytes = numel * dtype.itemsize
        found.append(message[begin : begin + nbytes].view(dtype))
        begin += padded(nbytes)
    return found

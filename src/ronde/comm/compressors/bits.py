"""Packs small whole numbers into bytes and back.

Element i of each quarter (eighth) of a tensor shares a byte: whole rows of memory are shifted at once.
"""

from __future__ import annotations

import torch

__all__ = ["pack", "packed_size", "unpack"]


def packed_size(numel: int, bits: int) -> int:
    """Return the bytes for `numel` elements of 1, 2 or 4 bits."""
    return -(-numel * bits // 8)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 [n], each less than 2^bits, into uint8 [packed_size(n)]."""
    each = 8 // bits
    missing = -len(codes) % each
    if missing:
        codes = torch.cat([codes, codes.new_zeros(missing)])
    rows = codes.view(each, -1)
    packed = rows[0].clone()
    for place in range(1, each):
        packed |= rows[place] << bits * place
    return packed


def unpack(packed: torch.Tensor, bits: int, numel: int) -> torch.Tensor:
    """Unpack the codes: uint8 [numel]."""
    each, mask = 8 // bits, (1 << bits) - 1
    codes = torch.empty((each, len(packed)), dtype=torch.uint8, device=packed.device)
    for place in range(each):
        torch.bitwise_and(packed >> bits * place, mask, out=codes[place])
    return codes.view(-1)[:numel]

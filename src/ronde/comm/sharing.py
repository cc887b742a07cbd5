"""Ranks complete tensors of which each has written a part of its own.

Large parts are broadcast from where they lie to where they belong; the others are packed and gathered, so
that many small ones cost one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch

__all__ = ["messages", "share"]

_LARGE = 256 << 10
_PACKED = 4 << 20


@torch.no_grad()
def share(comm: Any, parts: Sequence[Sequence[torch.Tensor]]) -> None:
    """Complete tensors: `parts[rank]` are flat and were written by that rank; on return all ranks have all.

    Args:
        comm: a `Comm`.
        parts: of the same numbers, sizes and dtypes on all ranks; on the group's device.
    """
    spread = [[part.view(torch.uint8) for part in each] for each in parts]
    pending = [
        comm.broadcast_async(part, source)
        for source, each in enumerate(spread)
        for part in each
        if part.numel() >= _LARGE
    ]
    small = [[part for part in each if part.numel() < _LARGE] for each in spread]
    for message in zip_longest(*(messages(each, _PACKED) for each in small), fillvalue=()):
        _gather_packed(comm, message)
    for each in pending:
        each.wait()


def messages(parts: Sequence[torch.Tensor], limit: int) -> Iterator[list[torch.Tensor]]:
    """Cut flat tensors into lists of `limit` elements together, all full but the last."""
    message: list[torch.Tensor] = []
    room = limit
    for part in parts:
        begin = 0
        while begin < part.numel():
            piece = part[begin : begin + room]
            message.append(piece)
            begin += piece.numel()
            room -= piece.numel()
            if not room:
                yield message
                message, room = [], limit
    if message:
        yield message


def _gather_packed(comm: Any, message: Sequence[Sequence[torch.Tensor]]) -> None:
    """Send one message of each rank: `message[rank]` are its parts."""
    length = max(sum(part.numel() for part in each) for each in message)
    device = next(part.device for each in message for part in each)
    buffer = torch.empty(len(message), length, dtype=torch.uint8, device=device)
    if message[comm.rank]:
        torch._foreach_copy_(_places(buffer[comm.rank], message[comm.rank]), list(message[comm.rank]))
    comm.all_gather_in_place(buffer.view(-1))
    received = [
        (place, part)
        for rank, each in enumerate(message)
        if rank != comm.rank
        for place, part in zip(_places(buffer[rank], each), each, strict=True)
    ]
    if received:
        torch._foreach_copy_([part for _, part in received], [place for place, _ in received])


def _places(row: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where these parts lie in their rank's row."""
    sizes = [part.numel() for part in parts]
    return list(row[: sum(sizes)].split(sizes)) if sizes else []

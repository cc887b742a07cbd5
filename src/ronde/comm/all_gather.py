"""All-gather in place of tensors of which each rank has written a part.

By Gloo large parts are broadcast in place; the others are packed and gathered, so that many small ones cost
one message. The library of a device gathers all parts as one message: each of its calls costs a kernel, and
copies on the device cost little (as in FSDP2). Where that would take twice the memory of the parts, because
one rank has far more than others, parts are broadcast there, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch

from ronde.patching.torch_internals import foreach_copy_

__all__ = ["copy_in", "copy_out", "messages", "share_by_messages", "share_in_one"]

_LARGE = 256 << 10
_PACKED = 4 << 20


class _Shared:
    """Handle of messages under way, which unpacks the packed ones."""

    def __init__(self, sent: Sequence[Any], packed: Sequence[_Packed], rank: int) -> None:
        self._sent = sent
        self._packed = packed
        self._rank = rank

    def wait(self) -> None:
        for each in self._packed:
            each.work.wait()
            copy_out(list(each.rows), each.message, self._rank)
        for work in self._sent:
            work.wait()


@dataclasses.dataclass(frozen=True, slots=True)
class _Packed:
    """Small parts of every rank, gathered as one message."""

    work: Any
    rows: torch.Tensor
    message: Sequence[Sequence[torch.Tensor]]


def share_by_messages(backend: Any, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> _Shared:
    """All-gather tensors of bytes in place: `parts[r]` were written by rank r.

    Args:
        backend: a `Backend`, whose `broadcast` and `all_gather` return handles.
        rank: the number of this rank.

    Returns:
        a handle; after its `wait` all ranks have all parts.
    """
    sent = [
        backend.broadcast(part, source)
        for source, each in enumerate(parts)
        for part in each
        if part.numel() >= _LARGE
    ]
    small = [[part for part in each if part.numel() < _LARGE] for each in parts]
    each_message = zip_longest(*(messages(each, _PACKED) for each in small), fillvalue=())
    return _Shared(sent, [_pack(backend, rank, message) for message in each_message], rank)


def share_in_one(backend: Any, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> _Shared:
    """All-gather tensors of bytes in place, as `share_by_messages`, by one all-gather for all parts."""
    sizes = [sum(part.numel() for part in each) for each in parts]
    if max(sizes) * len(sizes) > 2 * sum(sizes):
        return share_by_messages(backend, rank, parts)
    return _Shared([], [_pack(backend, rank, parts)], rank)


def _pack(backend: Any, rank: int, message: Sequence[Sequence[torch.Tensor]]) -> _Packed:
    """Start to gather parts of every rank as one message."""
    length = max(sum(part.numel() for part in each) for each in message)
    device = next(part.device for each in message for part in each)
    rows = torch.empty(len(message), length, dtype=torch.uint8, device=device)
    copy_in(rows[rank], message[rank])
    return _Packed(backend.all_gather(rows, rows[rank]), rows, message)


def messages(parts: Sequence[torch.Tensor], limit: int) -> Iterator[list[torch.Tensor]]:
    """Cut flat tensors into lists of `limit` elements together, all full but the last."""
    message: list[torch.Tensor] = []
    room = limit
    for part in parts:
        while part.numel() >= room:
            message.append(part[:room])
            part = part[room:]
            yield message
            message, room = [], limit
        if part.numel():
            message.append(part)
            room -= part.numel()
    if message:
        yield message


def copy_in(row: torch.Tensor, message: Sequence[torch.Tensor]) -> None:
    """Copy this rank's parts end to end into `row`."""
    if message:
        foreach_copy_(_places(row, message), list(message))


def copy_out(rows: Sequence[torch.Tensor], message: Sequence[Sequence[torch.Tensor]], rank: int) -> None:
    """Copy other ranks' rows to their parts; `rank` is this one."""
    for other, (row, parts) in enumerate(zip(rows, message, strict=True)):
        if other != rank and parts:
            foreach_copy_(list(parts), _places(row, parts))


def _places(row: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    sizes = [part.numel() for part in parts]
    return list(row[: sum(sizes)].split(sizes))

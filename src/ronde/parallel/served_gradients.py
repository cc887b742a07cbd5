"""Gradients that parameter servers sum and keep; a rank fetches one when the script looks at it.

A parameter is known to servers by a key. Ranks give keys in the order in which they divide parameters, which
is the same on all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ronde.comm.process_group import Comm
from ronde.parallel.division import Division, in_equal_parts
from ronde.server.dense import array_of, tensor_of
from ronde.server.dense_checks import name_of
from ronde.server.transport.client import Client, Request
from ronde.server.transport.wire import Operation
from ronde.sync.gradient_parts import GradientParts, Ranges, Wait
from ronde.sync.home import OnDevice
from ronde.sync.leaf import Leaf

__all__ = ["KeyedRanges", "ServedGradients", "divide_over_servers"]


class KeyedRanges(tuple["tuple[int, int] | None", ...]):
    """For each server its elements of a tensor, and None for the rank; with the tensor's key."""

    key: int

    def __new__(cls, ranges: Iterable[tuple[int, int] | None], key: int) -> KeyedRanges:
        made = super().__new__(cls, ranges)
        made.key = key
        return made


def divide_over_servers(servers: int) -> Division:
    """Large tensors are cut over all servers, small ones lie together on one."""
    keys = itertools.count()

    def split(sizes: Sequence[int], parts: int) -> list[Ranges]:
        return [KeyedRanges((*ranges, None), next(keys)) for ranges in in_equal_parts(sizes, parts)]

    return Division(servers, split)


class ServedGradients(GradientParts):
    """By leaf, that servers have the mean over ranks of its gradient.

    Args:
        comm: the ranks, which all push before servers have a sum.
        client: the connections to the servers.
        division: over servers.
    """

    away = True

    def __init__(self, comm: Comm, client: Client, division: Division) -> None:
        super().__init__(comm, division.assign, OnDevice())
        self._client = client
        # What servers have, by key. All ranks go by it alike, so it does not follow the garbage collector.
        self._there: dict[int, Ranges] = {}

    @property
    def owner(self) -> int:
        return self._client.servers

    def reduce(
        self, ranges: Sequence[Ranges], out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]
    ) -> Wait:
        pushed: list[tuple[Request, np.ndarray[Any, Any]]] = []
        for server, mine in enumerate(pieces[: self._client.servers]):
            keyed = [each for each in ranges if each[server] is not None]
            if not mine:
                continue
            keys = [_key(each) for each in keyed]
            room = pack(self._client, mine)
            meta = {
                "keys": keys,
                "sizes": [piece.numel() for piece in mine],
                "dtype": name_of(mine[0].dtype),
                "fresh": [int(key not in self._there) for key in keys],
            }
            array = array_of(torch.from_numpy(room).view(mine[0].dtype))
            request = self._client.send(server, Operation.ADD_GRADIENTS, meta, [array], changes=True)
            pushed.append((request, room))
        return _Pushed(self._client, pushed)

    def add(self, leaf: Leaf, ranges: Ranges, part: torch.Tensor) -> None:
        super().add(leaf, ranges, part)
        self._there[_key(ranges)] = ranges

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return None

    def parts(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return []

    def ranges(self, tensor: torch.Tensor) -> KeyedRanges | None:
        """Which server has which elements of this gradient; None where servers do not have it."""
        held = self._of(tensor)
        return held.ranges if held is not None and isinstance(held.ranges, KeyedRanges) else None

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return whole

    def zero(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self.whole(tensor)

    def drop(self, tensor: torch.Tensor) -> None:
        held = self._held.get(id(tensor))
        if held is not None:
            self._there.pop(_key(held.ranges), None)
        super().drop(tensor)

    def scale(self, factor: float | torch.Tensor) -> None:
        number = float(factor)
        if number == 1 or not self._there:
            return
        requests: list[Request] = []
        for server in range(self._client.servers):
            keys = [key for key, ranges in self._there.items() if ranges[server] is not None]
            if keys:
                meta = {"keys": keys, "factor": number}
                requests.append(self._client.send(server, Operation.SCALE_GRADIENTS, meta, changes=True))
        self._client.wait(requests)

    def _complete(self, flat: torch.Tensor, ranges: Ranges, part: torch.Tensor) -> None:
        fetch(self._client, Operation.GRADIENTS, ranges, flat)


class _Pushed:
    """Gradients on their way to the servers."""

    def __init__(self, client: Client, pushed: list[tuple[Request, np.ndarray[Any, Any]]]) -> None:
        self._client, self._pushed = client, pushed

    def wait(self) -> None:
        self._client.wait([request for request, _ in self._pushed])
        for _, room in self._pushed:
            self._client.give_back(room)
        self._pushed = []


def pack(client: Client, pieces: Sequence[torch.Tensor]) -> np.ndarray[Any, Any]:
    """Flat tensors of one dtype end to end, as bytes, where servers may read them; uint8 [n]."""
    dtype = pieces[0].dtype
    room = client.room(sum(piece.numel() for piece in pieces) * dtype.itemsize)
    target = torch.from_numpy(room).view(dtype)
    for part, piece in zip(target.split([piece.numel() for piece in pieces]), pieces, strict=True):
        part.copy_(piece)
    return room


def fetch(client: Client, operation: Operation, ranges: Ranges, flat: torch.Tensor) -> None:
    """Read one tensor from all servers, into its elements."""
    key = _key(ranges)
    asked: list[tuple[Request, tuple[int, int]]] = []
    rooms: list[np.ndarray[Any, Any]] = []
    for server in range(client.servers):
        span = ranges[server]
        if span is not None:
            room = client.room((span[1] - span[0]) * flat.dtype.itemsize)
            meta = {"keys": [key], **client.into(room)}
            clock = client.sequences[server]
            asked.append((client.send(server, operation, meta, clock=clock), span))
            rooms.append(room)
    answers = client.wait([request for request, _ in asked])
    for answer, (_, span) in zip(answers, asked, strict=True):
        flat[slice(*span)].copy_(tensor_of(answer.arrays[0], flat.dtype))
    for room in rooms:
        client.give_back(room)


def _key(ranges: Ranges) -> int:
    assert isinstance(ranges, KeyedRanges)
    return ranges.key

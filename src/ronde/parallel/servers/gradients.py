"""Gradients that parameter servers sum and keep, fetched on access.

Servers identify a parameter by a key. Ranks assign keys in the order in which they divide parameters, which
is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch

from ronde.comm.process_group import Comm
from ronde.server.dense import array_of, tensor_of
from ronde.server.dense_checks import name_of
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.wire import Opcode
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec
from ronde.sync.gradient_shards import GradientShards, HeldGradient, Spans, Wait
from ronde.sync.leaf import Leaf
from ronde.sync.reduced_gradients import whole_everywhere
from ronde.tensor.tensor_table import TensorTable
from ronde.trace.resident import Census

__all__ = ["ServedGradients"]


@final
class ServedGradients(GradientShards):
    """Gradients of leaves with their mean on servers.

    Args:
        comm: ranks that all push before servers have a sum.
        client: connections to the servers.
        partition: partition over servers.
    """

    away = True
    leave_device = False

    def __init__(self, comm: Comm, client: Client, partition: Partition) -> None:
        super().__init__()
        self._comm = comm
        self._client = client
        self._partition = partition
        self._held: TensorTable[HeldGradient] = TensorTable()
        self._come = 0
        # Gradients on servers, by key. Equal on all ranks, so it does not depend on the garbage collector.
        self._there: dict[int, ShardSpec] = {}

    def _any(self) -> bool:
        return bool(len(self._held))

    def held(self, tensor: torch.Tensor) -> HeldGradient | None:
        return self._held.get(tensor)

    @property
    def owner(self) -> int:
        return self._client.servers

    def divide(self, tensors: Sequence[torch.Tensor]) -> Sequence[Spans | None]:
        return self._partition.assign(tensors)

    def reduce(
        self, spans: Sequence[Spans], out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]
    ) -> Wait:
        pushed: list[tuple[PendingRequest, np.ndarray[Any, Any]]] = []
        for server, mine in enumerate(pieces[: self._client.servers]):
            keys = [_key(each) for each in spans if each[server] is not None]
            if not mine:
                continue
            room = pack(self._client, mine)
            meta = {
                "keys": keys,
                "sizes": [piece.numel() for piece in mine],
                "dtype": name_of(mine[0].dtype),
                "fresh": [int(key not in self._there) for key in keys],
            }
            array = array_of(torch.from_numpy(room).view(mine[0].dtype))
            request = self._client.send(server, Opcode.ADD_GRADIENTS, meta, [array], changes=True)
            pushed.append((request, room))
        return _Pushed(self._client, pushed)

    def send_home(self, elements: torch.Tensor) -> torch.Tensor:
        return elements

    def wait_for_sent(self) -> None:
        return

    def add(self, leaf: Leaf, spans: Spans, part: torch.Tensor) -> None:
        assert isinstance(spans, ShardSpec)
        self._come += 1  # also without a leaf here: another rank may still have it
        self._there[_key(spans)] = spans
        tensor = leaf.tensor
        if tensor is not None and tensor not in self._held:
            self._held.set(tensor, HeldGradient(self._come, leaf, spans, None, self.owner))

    def spec(self, tensor: torch.Tensor) -> ShardSpec | None:
        """Return each server's elements of a gradient; None if not on servers."""
        held = self._held.get(tensor)
        return held.spans if held is not None and isinstance(held.spans, ShardSpec) else None

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return whole

    def drop(self, tensor: torch.Tensor) -> None:
        held = self._held.pop(tensor)
        if held is not None:
            self._there.pop(_key(held.spans), None)

    def scale(self, factor: float | torch.Tensor) -> None:
        number = float(factor)
        if number == 1 or not self._there:
            return
        requests: list[PendingRequest] = []
        for server in range(self._client.servers):
            keys = [key for key, spec in self._there.items() if spec[server] is not None]
            if keys:
                meta = {"keys": keys, "factor": number}
                requests.append(self._client.send(server, Opcode.SCALE_GRADIENTS, meta, changes=True))
        self._client.wait(requests)

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        held, spec = self._held.get(tensor), self.spec(tensor)
        if held is None or spec is None:
            return None
        leaf = held.leaf
        with torch.inference_mode(False):  # later backwards add to it
            gradient = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
        flat = gradient.as_strided((gradient.numel(),), (1,))
        fetch(self._client, Opcode.GRADIENTS, spec, flat)
        self.drop(tensor)
        leaf.gradient = gradient
        return gradient

    def restore(self) -> None:
        whole_everywhere(self, self._held.values(), self._comm)

    def agree(self, tensor: torch.Tensor, spans: Spans) -> None:
        held = self._held.get(tensor)
        if held is not None and held.spans != spans:
            self.whole(tensor)

    def tell(self, census: Census) -> None:
        """Count nothing: this rank has no shards."""


class _Pushed:
    """Gradients on their way to the servers."""

    def __init__(self, client: Client, pushed: list[tuple[PendingRequest, np.ndarray[Any, Any]]]) -> None:
        self._client, self._pushed = client, pushed

    def wait(self) -> None:
        self._client.wait([request for request, _ in self._pushed])
        for _, room in self._pushed:
            self._client.give_back(room)
        self._pushed = []


def pack(client: Client, pieces: Sequence[torch.Tensor]) -> np.ndarray[Any, Any]:
    """Copy flat tensors of one dtype end to end, for servers to read.

    Returns:
        Bytes, uint8 [n].
    """
    dtype = pieces[0].dtype
    room = client.room(sum(piece.numel() for piece in pieces) * dtype.itemsize)
    target = torch.from_numpy(room).view(dtype)
    for part, piece in zip(target.split([piece.numel() for piece in pieces]), pieces, strict=True):
        part.copy_(piece)
    return room


def fetch(client: Client, operation: Opcode, spec: ShardSpec, flat: torch.Tensor) -> None:
    """Read one tensor from all servers."""
    key = _key(spec)
    asked: list[tuple[PendingRequest, tuple[int, int]]] = []
    rooms: list[np.ndarray[Any, Any]] = []
    for server in range(client.servers):
        span = spec[server]
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


def _key(spec: Spans) -> int:
    assert isinstance(spec, ShardSpec)
    return spec.key

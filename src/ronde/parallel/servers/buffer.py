"""Flat buffers averaged by parameter servers, with steps on ranks (BytePS)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ronde.comm.buffer import InOwnMemory, Source
from ronde.parallel.servers.gradients import pack
from ronde.policies.zero import in_equal_parts
from ronde.server.dense import array_of
from ronde.server.dense_checks import name_of
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.wire import Opcode

__all__ = ["ServedBuffers"]


class ServedBuffers:
    """Creates buffers, each with a key on the servers.

    Args:
        workers: number of ranks that push.
    """

    def __init__(self, client: Client, workers: int) -> None:
        self._client, self._workers = client, workers
        self._keys = itertools.count()

    def allocate(
        self, shapes: Sequence[tuple[int, torch.dtype]], devices: Sequence[torch.device]
    ) -> list[ServedBuffer]:
        """Allocate buffers like `Comm.allocate`."""
        return [
            ServedBuffer(
                torch.zeros(numel, dtype=dtype, device=device), self._client, self._workers, next(self._keys)
            )
            for (numel, dtype), device in zip(shapes, devices, strict=True)
        ]


class ServedBuffer(InOwnMemory):
    """One such buffer, cut into equal parts over servers."""

    def __init__(self, tensor: torch.Tensor, client: Client, workers: int, key: int) -> None:
        super().__init__(tensor)
        self._client, self._workers, self._key = client, workers, key
        self._requests: list[PendingRequest] = []

    def launch(self, sources: Sequence[Source] = ()) -> None:
        assert not sources
        flat, client = self._storage.tensor, self._client
        (spans,) = in_equal_parts([flat.numel()], client.servers)
        of_servers = {server: flat[slice(*span)] for server, span in enumerate(spans) if span is not None}
        self._parts = list(of_servers.values())
        self._rooms = [pack(client, [part]) for part in self._parts]
        self._requests = []
        for (server, part), room in zip(of_servers.items(), self._rooms, strict=True):
            meta = {"keys": [self._key], "sizes": [part.numel()], "dtype": name_of(part.dtype), "pull": True}
            meta |= client.into(room)  # the push has been added when the answer arrives
            array = array_of(torch.from_numpy(room).view(part.dtype))
            self._requests.append(client.send(server, Opcode.PUSH, meta, [array], changes=True))

    def advance(self) -> bool:
        """Return at once: the servers work by themselves."""
        return True

    def reduce(self) -> None:
        answers = self._client.wait(self._requests)
        for part, answer in zip(self._parts, answers, strict=True):
            raw = torch.from_numpy(answer.arrays[0].reshape(-1))
            part.copy_(raw.view(part.dtype) if raw.dtype != part.dtype else raw)

    def collect(self) -> None:
        self._storage.tensor.div_(self._workers)

    def settle(self) -> None:
        for room in self._rooms:
            self._client.give_back(room)
        self._parts, self._rooms, self._requests = [], [], []

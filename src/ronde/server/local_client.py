"""An in-process server for a single worker, with the interface of `Client`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ronde.server.array_codec import Array
from ronde.server.dense import DenseShard
from ronde.server.parameter_server import ParameterServer
from ronde.server.shard import ServerShard
from ronde.server.transport.client import PendingRequest, ServerRefused
from ronde.server.transport.wire import Message, Opcode, WireError

__all__ = ["LocalClient"]


class LocalClient:
    """A client of one `DenseShard` in this process, without a transport."""

    servers = 1

    def __init__(self) -> None:
        self._server = ParameterServer(ServerShard({"dense": DenseShard()}), None, workers=1)
        self._count = 0
        self._sequence = 0

    @property
    def sequences(self) -> list[int]:
        return [self._sequence]

    def send(
        self,
        server: int,
        operation: Opcode,
        meta: dict[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        *,
        clock: int = 0,
        changes: bool = False,
    ) -> PendingRequest:
        """Handle a request like `Client.send`; the answer is present on return."""
        self._count += 1
        sequence = self._sequence + 1 if changes else 0
        message = Message(operation, meta or {}, arrays, sequence=sequence, clock=clock, request=self._count)
        request = PendingRequest(server, message)

        def reply(answer: Message) -> None:
            # A shard returns its own memory, which later changes overwrite.
            copied = [np.array(each) for each in answer.arrays]
            request.answer = dataclasses.replace(answer, arrays=copied)

        try:
            self._server.handle(message, reply)
        except WireError as error:
            reply(message.refuse(str(error), error.kind))
        if changes and request.answer is not None and request.answer.operation is Opcode.DONE:
            self._sequence = sequence
        return request

    def wait(self, requests: Iterable[PendingRequest]) -> list[Message]:
        """Return the answers, like `Client.wait`.

        Raises:
            ServerRefused: the server refused a request.
        """
        answers: list[Message] = []
        for request in requests:
            assert request.answer is not None
            if request.answer.operation is Opcode.REFUSED:
                raise ServerRefused(str(request.answer.meta["why"]))
            answers.append(request.answer)
        return answers

    def room(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def give_back(self, room: Array) -> None:
        """No-op: the buffer is garbage-collected."""

    def into(self, *rooms: Array) -> dict[str, Any]:
        return {}

    def poll(self) -> None:
        """No-op: every answer is already present."""

    def close(self) -> None:
        """No-op: this client holds no connections."""

"""A server's end: receives messages, has them handled, and sends answers, perhaps later.

One thread does all, so a handler's state needs no locks. What is no message of this run is counted and
answered, and changes nothing else.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import zmq

from ronde.errors import UsageError
from ronde.server.transport.arena import PeerArena
from ronde.server.transport.wire import (
    BEFORE_TOKEN,
    NO_TOKEN,
    Limits,
    Message,
    NoArena,
    Operation,
    WireError,
    decode,
    encode,
    request_of,
)

__all__ = ["Handler", "Reply", "Service", "check_endpoint"]

_TICK_MS = 50
_AT_ONCE = 64
_REMEMBERED = 4096
# A worker that is started again, or comes back over a broken line, has a new connection.
_CONNECTIONS_OF_WORKER = 4
# What may be said and asked without a hello.
_FIRST = (Operation.STATUS, Operation.STOP)

Reply = Callable[[Message], None]


class Handler(Protocol):
    """What a service does with messages."""

    def handle(self, message: Message, reply: Reply) -> None:
        """Answer by `reply`, now or later; raises `WireError` for what cannot be done."""
        ...

    def tick(self) -> None:
        """Called many times a second, between messages."""
        ...


class Service:
    """Listens until it is told to stop.

    Args:
        endpoint: of ZeroMQ: `tcp://127.0.0.1:4000`, `tcp://eth0:*`, `ipc://@name`.
        token: what every message of this run holds.
        limits: of a message.

    Attributes:
        endpoint: where it listens, the port resolved.
        refused: how many messages were refused, by kind.

    Raises:
        UsageError: it cannot listen there.
    """

    def __init__(self, endpoint: str, token: bytes, handler: Handler, limits: Limits | None = None) -> None:
        check_endpoint(endpoint)
        self._token = token
        self._handler = handler
        self._limits = limits or Limits()
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # what is on its way is bounded by what workers ask
        self._socket.setsockopt(zmq.MAXMSGSIZE, self._limits.nbytes)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UsageError(f"a server cannot listen at {endpoint}: {error}") from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.refused: collections.Counter[str] = collections.Counter()
        # Of connections that have shown the token and said hello, the newest last.
        self._arenas: dict[bytes, PeerArena | NoArena] = {}
        # By connection, what was answered into a worker's memory, which may have another use by now.
        self._placed: dict[bytes, collections.deque[int]] = {}
        self._workers: dict[bytes, int] = {}
        self._stopped = False

    def stop(self) -> None:
        """Return from `run` soon; what has been answered is still sent."""
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopped:
            if self._socket.poll(_TICK_MS):
                self._receive()
            self._handler.tick()

    def close(self) -> None:
        self._context.destroy(linger=200)

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._take(identity.bytes, frames)

    def _take(self, identity: bytes, frames: list[Any]) -> None:
        try:
            message = decode(frames, self._token, self._limits, self._arenas.get(identity))
            if message.operation is Operation.HELLO:
                self._meet(identity, message)
            elif identity not in self._arenas and message.operation not in _FIRST:
                raise WireError("hello", "this connection has not said hello")
            self._handler.handle(message, self._replier(identity, message))
        except WireError as error:
            # A connection says with its hello where its memory is; an earlier server may have had that.
            kind = "hello" if error.kind == "arena" and identity not in self._arenas else error.kind
            self._refuse(identity, frames, kind, str(error))
        except Exception as error:  # a defect of ours, which must not end the server for all others
            self._refuse(identity, frames, "defect", f"{type(error).__name__} {error}"[:300])

    def _refuse(self, identity: bytes, frames: list[Any], kind: str, why: str) -> None:
        """Count it, and say so; whoever has not shown the run's token is not told it."""
        self.refused[kind] += 1
        refusal = Message(Operation.REFUSED, request=request_of(frames)).refuse(why, kind)
        self._send(identity, encode(refusal, NO_TOKEN if kind in BEFORE_TOKEN else self._token))

    def _meet(self, identity: bytes, message: Message) -> None:
        described = message.meta.get("arena")
        known = self._arenas.pop(identity, None)
        if known is None:
            self._forget_oldest(message.worker)
        self._workers[identity] = message.worker
        if described is None:
            self._arenas[identity] = known or NoArena()
            return
        arena = known if isinstance(known, PeerArena) else PeerArena()
        arena.follow(described)
        self._arenas[identity] = arena

    def _forget_oldest(self, worker: int) -> None:
        """Connections of one worker are few; of a dead one nobody says that it is gone."""
        own = [identity for identity in self._arenas if self._workers[identity] == worker]
        for identity in own[: 1 - _CONNECTIONS_OF_WORKER]:
            del self._arenas[identity], self._workers[identity]
            self._placed.pop(identity, None)

    def _replier(self, identity: bytes, request: Message) -> Reply:
        into = request.meta.get("into")

        def reply(answer: Message) -> None:
            arena = self._arenas.get(identity)
            if answer.operation is Operation.REFUSED:
                self.refused[str(answer.meta.get("kind"))] += 1
            placed = self._placed.setdefault(identity, collections.deque(maxlen=_REMEMBERED))
            is_new = request.request not in placed  # else it travels as frames, and nobody waits for it
            is_placed = into is not None and is_new and answer.operation is Operation.DONE
            if is_placed and isinstance(arena, PeerArena):
                answer = _placed(answer, arena, into)
                placed.append(request.request)
            try:
                frames = encode(answer, self._token, arena, self._limits)
            except WireError as error:  # "oversized" would be asked again, as it may be damage
                frames = encode(answer.refuse(f"the answer: {error}", "failed"), self._token)
            self._send(identity, frames)

        return reply

    def _send(self, identity: bytes, frames: list[Any]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # whoever asked is gone
            self._socket.send_multipart([identity, *frames], zmq.NOBLOCK, copy=False)


def check_endpoint(endpoint: str) -> None:
    """See that one interface is named, not all of them.

    Raises:
        UsageError: it is not.
    """
    if re.match(r"tcp://(\*|0\.0\.0\.0|\[?::0?\]?):[\d*!]+$", endpoint):
        raise UsageError(
            f"a server does not listen on all interfaces ({endpoint}): name the address of one, such as "
            "tcp://127.0.0.1:4000 or that of a private network"
        )
    if not endpoint.startswith(("tcp://", "ipc://")):
        raise UsageError(f"a server listens at tcp://ADDRESS:PORT or ipc://NAME, not at {endpoint}")


def _placed(answer: Message, arena: PeerArena, into: Any) -> Message:
    """The answer with its arrays in the shared memory that the request names; without a place one travels."""
    if not isinstance(into, list) or len(into) != len(answer.arrays):
        return answer.refuse(f"{len(answer.arrays)} arrays are the answer, and there is not a place for each")
    try:
        rooms = [
            None if place is None else arena.room(place, array.nbytes)
            for place, array in zip(into, answer.arrays, strict=True)
        ]
    except WireError as error:
        return answer.refuse(str(error), error.kind)
    arrays: list[np.ndarray[Any, Any]] = []
    for room, array in zip(rooms, answer.arrays, strict=True):
        if room is None:
            arrays.append(array)
            continue
        target = room.view(array.dtype).reshape(array.shape)
        np.copyto(target, array)
        arrays.append(target)
    return dataclasses.replace(answer, arrays=arrays)

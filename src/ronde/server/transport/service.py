"""A server's end: receives messages, has them handled, and sends answers, perhaps later.

One thread does all, so a handler's state needs no locks. What is no message of this run is counted and
answered, and changes nothing else. Whoever waits long asks by STATUS, with `asked` in its meta, which
requests of this connection have not been answered yet, and need not be sent again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import zmq

from ronde.errors import UsageError
from ronde.launch.linux_process import is_alive
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
# In all; one that is forgotten says hello again.
_CONNECTIONS = 16_384
_MOST_WAITING = 65_536
_LOOK_EVERY_S = 0.5
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


@dataclasses.dataclass(slots=True)
class _Connection:
    """One that has shown the token and said hello.

    Attributes:
        placed: what was answered into a worker's memory, which may have another use by now.
        waiting: requests that came and have not been answered, the newest last.
    """

    worker: int
    arena: PeerArena | NoArena = dataclasses.field(default_factory=NoArena)
    placed: collections.deque[int] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_REMEMBERED)
    )
    waiting: dict[int, None] = dataclasses.field(default_factory=dict)

    def came(self, request: int) -> None:
        if len(self.waiting) >= _MOST_WAITING:
            del self.waiting[next(iter(self.waiting))]
        self.waiting[request] = None

    @property
    def is_of_dead(self) -> bool:
        """Whether memory of a process is held here that has ended."""
        return isinstance(self.arena, PeerArena) and not all(map(is_alive, self.arena.processes))


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
        # The newest last.
        self._connections: dict[bytes, _Connection] = {}
        self._looked = time.monotonic()
        self._stopped = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)

    def stop(self) -> None:
        """Return from `run` soon; what has been answered is still sent."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """Have the handler's `tick` called at once; other threads may."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopped:
            for which, _ in self._poller.poll(_TICK_MS):
                if which is self._socket:
                    self._receive()
                else:
                    os.eventfd_read(self._bell)
            self._let_go_of_the_dead()
            self._handler.tick()

    def close(self) -> None:
        bell, self._bell = self._bell, -1
        os.close(bell)
        self._context.destroy(linger=200)

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._take(identity.bytes, frames)

    def _take(self, identity: bytes, frames: list[Any]) -> None:
        known = self._connections.get(identity)
        try:
            message = decode(frames, self._token, self._limits, None if known is None else known.arena)
            if message.operation is Operation.HELLO:
                self._meet(identity, message)
            elif known is None and message.operation not in _FIRST:
                raise WireError("hello", "this connection has not said hello")
            self._hand_over(identity, message)
        except WireError as error:
            # A connection says with its hello where its memory is; an earlier server may have had that.
            kind = "hello" if error.kind == "arena" and identity not in self._connections else error.kind
            self._refuse(identity, frames, kind, str(error))
        except Exception as error:  # a defect of ours, which must not end the server for all others
            self._refuse(identity, frames, "defect", f"{type(error).__name__} {error}"[:300])

    def _hand_over(self, identity: bytes, message: Message) -> None:
        reply = self._replier(identity, message)
        connection = self._connections.get(identity)
        if connection is None:
            self._handler.handle(message, reply)
            return
        connection.came(message.request)
        try:
            self._handler.handle(message, reply)
        except BaseException:
            connection.waiting.pop(message.request, None)
            raise

    def _refuse(self, identity: bytes, frames: list[Any], kind: str, why: str) -> None:
        """Count it, and say so; whoever has not shown the run's token is not told it."""
        self.refused[kind] += 1
        refusal = Message(Operation.REFUSED, request=request_of(frames)).refuse(why, kind)
        self._send(identity, encode(refusal, NO_TOKEN if kind in BEFORE_TOKEN else self._token))

    def _meet(self, identity: bytes, message: Message) -> None:
        described = message.meta.get("arena")
        connection = self._connections.pop(identity, None)
        if connection is None:
            self._forget_oldest(message.worker)
            connection = _Connection(message.worker)
        connection.worker = message.worker
        if described is not None:
            if not isinstance(connection.arena, PeerArena):
                connection.arena = PeerArena()
            connection.arena.follow(described)
        self._connections[identity] = connection

    def _forget_oldest(self, worker: int) -> None:
        """Connections of one worker are few; of a dead one on another host nobody says that it is gone."""
        own = [identity for identity, each in self._connections.items() if each.worker == worker]
        for identity in own[: 1 - _CONNECTIONS_OF_WORKER]:
            del self._connections[identity]
        if len(self._connections) >= _CONNECTIONS:
            del self._connections[next(iter(self._connections))]

    def _let_go_of_the_dead(self) -> None:
        """Memory that a process shared stays as long as somebody has it."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        for identity in [identity for identity, each in self._connections.items() if each.is_of_dead]:
            del self._connections[identity]

    def _replier(self, identity: bytes, request: Message) -> Reply:
        into = request.meta.get("into")
        told: dict[str, Any] = {}
        if request.operation is Operation.STATUS and "asked" in request.meta:
            told = {"waiting": self._waiting(identity, request.meta["asked"])}

        def reply(answer: Message) -> None:
            connection = self._connections.get(identity)
            if answer.operation is Operation.REFUSED:
                self.refused[str(answer.meta.get("kind"))] += 1
            if told:
                answer = dataclasses.replace(answer, meta={**answer.meta, **told})
            if connection is None:
                self._send(identity, encode(answer, self._token))
                return
            connection.waiting.pop(request.request, None)
            is_new = request.request not in connection.placed  # else it travels, and nobody waits for it
            is_placed = into is not None and is_new and answer.operation is Operation.DONE
            if is_placed and isinstance(connection.arena, PeerArena):
                answer = _placed(answer, connection.arena, into)
                connection.placed.append(request.request)
            try:
                frames = encode(answer, self._token, connection.arena, self._limits)
            except WireError as error:  # "oversized" would be asked again, as it may be damage
                frames = encode(answer.refuse(f"the answer: {error}", "failed"), self._token)
            self._send(identity, frames)

        return reply

    def _waiting(self, identity: bytes, asked: Any) -> list[int] | None:
        """Those of these requests that are still to be answered here; None where hello has not been said."""
        if not isinstance(asked, list):
            raise WireError("request", "status: what was asked is a list of numbers of requests")
        connection = self._connections.get(identity)
        if connection is None:
            return None
        return [each for each in asked if type(each) is int and each in connection.waiting]

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

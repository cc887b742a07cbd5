"""A server's endpoint: receives messages, lets a handler answer them, sends answers.

One thread does all the work, so a handler's state needs no locks. A client proves the run's token before it
can ask for anything; messages that do not belong to its session are counted and refused, without other
effect. A client asks by STATUS, with `asked` in its meta, which requests of its connection are still pending;
it need not send those again.
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
from ronde.server.transport.envelope import Kind, open_envelope, write_refusal
from ronde.server.transport.sessions import Sessions
from ronde.server.transport.wire import Limits, Message, NoArena, Opcode, WireError, decode, encode

__all__ = ["Handler", "Reply", "Service", "check_endpoint"]

_TICK_MS = 50
_SEAL_BYTES = 1024  # by which a sealed frame is larger, at most
_AT_ONCE = 64
_REMEMBERED = 4096
# Connections per worker: a restarted worker, or one after a broken line, has a new one.
_CONNECTIONS_OF_WORKER = 4
# Connections in all; a client that was forgotten says hello again.
_CONNECTIONS = 16_384
_MOST_WAITING = 65_536
_LOOK_EVERY_S = 0.5
_MOST_TOLD = 100
# Refusals that go to connections without a session.
_UNSEALED = ("session", "token")
# Operations that need no hello.
_FIRST = (Opcode.STATUS, Opcode.STOP)

Reply = Callable[[Message], None]


class Handler(Protocol):
    """The logic of a server behind a `Service`."""

    def handle(self, message: Message, reply: Reply) -> None:
        """Answer by `reply`, now or later; raises `WireError` for a refusal."""
        ...

    def tick(self) -> None:
        """Run periodic work; called many times a second, between messages."""
        ...


@dataclasses.dataclass(slots=True)
class _Connection:
    """A connection that has proven the token and sent a hello.

    Attributes:
        placed: ids of requests with answers in shared memory, which the worker may have reused.
        waiting: ids of unanswered requests, the newest last.
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
        """Return whether the arena belongs to a process that has ended."""
        return isinstance(self.arena, PeerArena) and not all(map(is_alive, self.arena.processes))


class Service:
    """A ZeroMQ server socket with its message loop.

    Args:
        endpoint: ZeroMQ endpoint: `tcp://127.0.0.1:4000`, `tcp://eth0:*`, `ipc://@name`.
        token: the run's token, which clients prove.
        limits: limits of a message.
        tell: function that tells the operator of senders without the token, once for each address.

    Attributes:
        endpoint: endpoint with the resolved port.
        refused: number of refused messages, by kind.

    Raises:
        UsageError: the endpoint is not available.
    """

    def __init__(
        self,
        endpoint: str,
        token: bytes,
        handler: Handler,
        limits: Limits | None = None,
        *,
        tell: Callable[[str], object] = lambda words: None,
    ) -> None:
        check_endpoint(endpoint)
        self._sessions = Sessions(token)
        self._tell, self._told_of = tell, set[str]()
        self._handler = handler
        self._limits = limits or Limits()
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # workers' requests bound the pending answers
        self._socket.setsockopt(zmq.MAXMSGSIZE, self._limits.nbytes + _SEAL_BYTES)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UsageError(f"a server cannot listen at {endpoint}: {error} [R423]") from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.refused: collections.Counter[str] = collections.Counter()
        # In order of their last hello, the newest last.
        self._connections: dict[bytes, _Connection] = {}
        self._looked = time.monotonic()
        self._stopped = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)

    def stop(self) -> None:
        """Make `run` return soon; pending answers are still sent."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """Make `run` call the handler's `tick` at once; thread-safe."""
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
        try:
            envelope = open_envelope(frames)
            match envelope.kind:
                case Kind.CHALLENGE:
                    self._send(identity, self._sessions.respond(identity, bytes(envelope.body)))
                case Kind.PROOF:
                    self._sessions.begin(identity, bytes(envelope.body))
                case Kind.SEALED:
                    self._take_message(identity, self._sessions.open(identity, envelope, frames[1:]))
                case Kind.REFUSED:  # a client with another token refuses this server
                    self.refused["token"] += 1
                    self._name_stranger(frames)
                case _:
                    raise WireError("envelope", f"a server gets no {envelope.kind.name.lower()} [R428]")
        except WireError as error:
            # HELLO announces the arena; after a restart this server must see it again.
            kind = "hello" if error.kind == "arena" and identity not in self._connections else error.kind
            self._refuse(identity, frames, kind, str(error))
        except Exception as error:  # a defect must not end the server for the other workers
            self._refuse(identity, frames, "defect", f"{type(error).__name__} {error}"[:300])

    def _take_message(self, identity: bytes, opened: list[Any]) -> None:
        known = self._connections.get(identity)
        message = decode(opened, self._limits, None if known is None else known.arena)
        if message.operation is Opcode.HELLO:
            self._meet(identity, message)
        elif known is None and message.operation not in _FIRST:
            raise WireError("hello", "this connection has not said hello [R427]")
        self._hand_over(identity, message)

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
        """Count a refusal and send it, sealed if the connection has a session."""
        self.refused[kind] += 1
        if kind == "token":
            self._name_stranger(frames)
        request = _request_of(frames)
        refusal = encode(Message(Opcode.REFUSED, request=request).refuse(why, kind))
        sealed = None if kind in _UNSEALED else self._sessions.seal(identity, refusal, request)
        self._send(identity, write_refusal(kind, why, request) if sealed is None else sealed)

    def _name_stranger(self, frames: list[Any]) -> None:
        """Tell the operator the address of a sender with another token."""
        address = _address_of(frames)
        if address not in self._told_of and len(self._told_of) < _MOST_TOLD:
            self._told_of.add(address)
            self._tell(f"{address} is refused: it has another token than this run, or none [R427]")

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
        """Drop a worker's oldest connections, as a dead worker's are never closed."""
        own = [identity for identity, each in self._connections.items() if each.worker == worker]
        for identity in own[: 1 - _CONNECTIONS_OF_WORKER]:
            del self._connections[identity]
        if len(self._connections) >= _CONNECTIONS:
            del self._connections[next(iter(self._connections))]

    def _let_go_of_the_dead(self) -> None:
        """Drop connections of ended processes, to release their shared memory."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        for identity in [identity for identity, each in self._connections.items() if each.is_of_dead]:
            del self._connections[identity]

    def _replier(self, identity: bytes, request: Message) -> Reply:
        into = request.meta.get("into")
        told: dict[str, Any] = {}
        if request.operation is Opcode.STATUS and "asked" in request.meta:
            told = {"waiting": self._waiting(identity, request.meta["asked"])}

        def reply(answer: Message) -> None:
            connection = self._connections.get(identity)
            if answer.operation is Opcode.REFUSED:
                self.refused[str(answer.meta.get("kind"))] += 1
            if told:
                answer = dataclasses.replace(answer, meta={**answer.meta, **told})
            if connection is None:
                self._answer(identity, answer)
                return
            connection.waiting.pop(request.request, None)
            is_new = request.request not in connection.placed  # else it is a repeat, sent in frames
            is_placed = into is not None and is_new and answer.operation is Opcode.DONE
            if is_placed and isinstance(connection.arena, PeerArena):
                answer = _placed(answer, connection.arena, into)
                connection.placed.append(request.request)
            self._answer(identity, answer, connection.arena)

        return reply

    def _waiting(self, identity: bytes, asked: Any) -> list[int] | None:
        """Return the requests in `asked` that are pending; None before hello."""
        if not isinstance(asked, list):
            raise WireError("request", "status: give a list of request numbers [R748]")
        connection = self._connections.get(identity)
        if connection is None:
            return None
        return [each for each in asked if type(each) is int and each in connection.waiting]

    def _answer(self, identity: bytes, answer: Message, arena: PeerArena | NoArena | None = None) -> None:
        try:
            frames = encode(answer, arena, self._limits)
        except WireError as error:  # a client resends after "oversized", as it may be damage
            frames = encode(answer.refuse(f"the answer: {error}", "failed"))
        sealed = self._sessions.seal(identity, frames, answer.request)
        if sealed is not None:  # else the client begins a new session, and asks again
            self._send(identity, sealed)

    def _send(self, identity: bytes, frames: list[Any]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # the client is gone
            self._socket.send_multipart([identity, *frames], zmq.NOBLOCK, copy=False)


def check_endpoint(endpoint: str) -> None:
    """Check that an endpoint names one interface, not all of them.

    Raises:
        UsageError: the endpoint names all interfaces or is malformed.
    """
    if re.match(r"tcp://(\*|0\.0\.0\.0|\[?::0?\]?):[\d*!]+$", endpoint):
        raise UsageError(
            f"a server does not listen on all interfaces ({endpoint}): name the address of one, such as "
            "tcp://127.0.0.1:4000 or that of a private network [R435]"
        )
    if not endpoint.startswith(("tcp://", "ipc://")):
        raise UsageError(f"a server listens at tcp://ADDRESS:PORT or ipc://NAME, not at {endpoint} [R435]")


def _placed(answer: Message, arena: PeerArena, into: Any) -> Message:
    """Copy an answer's arrays to the shared memory that the request names.

    An array without a place is sent as a frame.
    """
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


def _request_of(frames: list[Any]) -> int:
    """Return the request id on an envelope; 0 if unknown."""
    try:
        return open_envelope(frames).request
    except WireError:
        return 0


def _address_of(frames: list[Any]) -> str:
    """Return the address of a message's sender, as ZeroMQ saw it."""
    try:
        return str(frames[0].get("Peer-Address")) or "a process of this host"
    except (AttributeError, KeyError, zmq.ZMQError):
        return "a process of this host"

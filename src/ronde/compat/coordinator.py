"""Message passing between rank 0, which negotiates, and the other ranks.

Each other rank has one TCP connection to rank 0. A rank is lost when its connection ends, and the others are
told at once.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ronde.comm.keepalive import watch
from ronde.compat.negotiation import Negotiation, Response, TensorRequest
from ronde.errors import LaunchError, PeerLost
from ronde.messages import as_note

__all__ = ["Coordinator", "CoordinatorConnection", "Lost", "connect"]

# Seconds without a sign of life from its host after which a rank counts as lost.
_SILENCE_S = 20.0

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
# Flag in a length: the rest is the number of an earlier message, which is repeated.
_AGAIN = 1 << 31
_MOST_KNOWN = 1 << 16
_MOST_BYTES = 1 << 26

T = TypeVar("T")


class Lost(Exception):
    """Raised when the peer of a connection is gone."""


class CoordinatorConnection(Generic[T]):
    """One end of a connection that carries typed messages, in MessagePack.

    A repeated message is sent as its number: training submits the same names in every step. Repeated messages
    are received as the same instance, and must not be changed.

    Args:
        receives: type of the messages that the peer sends.
    """

    def __init__(self, connection: socket.socket, receives: type[T]) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch(connection, _SILENCE_S)
        self.connection = connection
        self._received = bytearray()
        self._sending = threading.Lock()
        self._sent: dict[object, int] = {}
        self._known: list[T] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_number)
        self._decoder = msgspec.msgpack.Decoder(receives)

    def send(self, *messages: object) -> None:
        """Send messages; thread-safe.

        Raises:
            Lost: the peer is gone.
        """
        try:
            with self._sending:
                self.connection.sendall(b"".join(map(self._frame, messages)))
        except OSError as error:
            raise Lost(str(error)) from None

    def _frame(self, message: object) -> bytes:
        number = self._sent.get(message)
        if number is not None:
            return _LENGTH.pack(_AGAIN | number)
        data = self._encoder.encode(message)
        if len(self._sent) < _MOST_KNOWN:
            self._sent[message] = len(self._sent)
        return _LENGTH.pack(len(data)) + data

    def receive(self) -> list[T]:
        """Wait for some bytes, and return the messages that are complete.

        Raises:
            Lost: the peer is gone, or sent something else than a message.
        """
        try:
            data = self.connection.recv(_CHUNK)
            if not data:
                raise Lost("the connection has ended [R712]")
            self._received += data
            return list(self._messages())
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise Lost(str(error)) from None

    def _messages(self) -> Iterator[T]:
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + (0 if length & _AGAIN else length)
            if end > _MOST_BYTES or (length & _AGAIN and length ^ _AGAIN >= len(self._known)):
                raise Lost(
                    f"{length:#x} is not the length or number of a message; another program is connected "
                    "[R712]"
                )
            if len(self._received) < end:
                return
            message: T
            if length & _AGAIN:
                message = self._known[length ^ _AGAIN]
            else:
                message = self._decoder.decode(self._received[_LENGTH.size : end])
                if len(self._known) < _MOST_KNOWN:
                    self._known.append(message)
            del self._received[:end]
            yield message

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def connect(
    address: tuple[str, int], rank: int, token: bytes, *, starts_within: float
) -> CoordinatorConnection[Response]:
    """Connect this rank to the coordinator, within `starts_within` seconds.

    Raises:
        LaunchError: the coordinator cannot be reached.
    """
    try:
        connection = socket.create_connection(address, timeout=starts_within)
    except OSError as error:
        raise LaunchError(
            f"rank {rank} cannot reach rank 0 at {address[0]}:{address[1]}: {error} [R710]"
        ) from None
    connection.sendall(token + _LENGTH.pack(rank))
    return CoordinatorConnection(connection, Response)


def _number(value: Any) -> int | float:
    """Return the number in a NumPy scalar or a tensor of one element."""
    return value.item()


class Coordinator:
    """The negotiation on rank 0, run by a thread or a waiting caller.

    Args:
        carry_out: function that executes a response on this rank; called one at a time, in the same order as
            on all ranks.
        token: 16 bytes that each rank sends first.
        starts_within: seconds within which all ranks must connect.
        stalls_after: seconds after which a tensor that some ranks have not submitted is reported; 0: never.
        ends_after: seconds after which such a tensor is an error on all ranks; 0: never.
    """

    def __init__(
        self,
        negotiation: Negotiation,
        ranks: int,
        host: str,
        token: bytes,
        carry_out: Callable[[Response], None],
        *,
        starts_within: float = 60.0,
        stalls_after: float = 60.0,
        ends_after: float = 0.0,
    ) -> None:
        self._negotiation, self._ranks, self._token = negotiation, ranks, token
        self._carry_out = carry_out
        self._starts_within = starts_within
        self._stalls_after, self._ends_after = stalls_after, ends_after
        self._told: set[str] = set()
        self._server = socket.create_server((host, 0), backlog=ranks)
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._links: dict[int, CoordinatorConnection[TensorRequest]] = {}
        self._leaving: set[int] = set()
        self._woken, self._wake = socket.socketpair()
        self._known = threading.Lock()
        """Guards the state of requests."""
        self._turn = threading.Lock()
        """Guards a response from its creation until this rank has executed it."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="ronde coordinator", daemon=True)

    def start(self) -> None:
        """Accept the connections of all other ranks, and start the thread.

        Raises:
            LaunchError: a rank did not connect in time.
        """
        self._accept()
        self._thread.start()

    def submit(self, requests: Sequence[TensorRequest]) -> None:
        """Add this rank's own requests; thread-safe."""
        for request in requests:
            self._hear(0, request)
        if self._negotiation.has_ready or requests[0].kind == "close":
            with contextlib.suppress(OSError):
                self._wake.send(b"w")

    def help(self) -> None:
        """Execute ready responses in the calling thread, unless another thread does."""
        if self._negotiation.has_ready and self._turn.acquire(blocking=False):
            try:
                self._answer()
            finally:
                self._turn.release()

    def join(self) -> None:
        """Wait until all ranks have left."""
        self._thread.join()

    def _accept(self) -> None:
        """
        Accept connections until each rank has shown the token.

        Unknown callers do not delay ranks.
        """
        until = time.monotonic() + self._starts_within
        self._server.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            try:
                while len(self._links) < self._ranks - 1:
                    events = selector.select(max(until - time.monotonic(), 0.0))
                    if not events or time.monotonic() > until:
                        missing = sorted({*range(1, self._ranks)} - {*self._links})
                        raise LaunchError(
                            f"ranks {missing} have not called init() within {self._starts_within:.0f} s; all "
                            "must call it [R710]"
                        )
                    for key, _ in events:
                        self._greet(selector, key)
            finally:
                for key in selector.get_map().values():
                    if isinstance(key.data, bytearray):
                        key.fileobj.close()  # pyright: ignore[reportAttributeAccessIssue]

    def _greet(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        """Accept a connection, or read the token and rank that it sends first."""
        if key.fileobj is self._server:
            with contextlib.suppress(OSError):  # it is gone
                selector.register(self._server.accept()[0], selectors.EVENT_READ, bytearray())
            return
        connection: Any = key.fileobj
        wanted = len(self._token) + _LENGTH.size
        try:
            data = connection.recv(wanted - len(key.data))
        except OSError:
            data = b""
        key.data.extend(data)
        if data and len(key.data) < wanted:
            return
        selector.unregister(connection)
        rank = int.from_bytes(key.data[len(self._token) :], "little")
        is_known = len(key.data) == wanted and hmac.compare_digest(key.data[: len(self._token)], self._token)
        if is_known and 0 < rank < self._ranks and rank not in self._links:
            self._links[rank] = CoordinatorConnection(connection, TensorRequest)
        else:
            connection.close()

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                for rank, link in self._links.items():
                    selector.register(link.connection, selectors.EVENT_READ, rank)
                selector.register(self._woken, selectors.EVENT_READ, None)
                self._negotiate(selector)
        finally:
            for link in self._links.values():
                link.close()
            for each in (self._server, self._woken, self._wake):
                each.close()

    def _negotiate(self, selector: selectors.BaseSelector) -> None:
        patience = min(filter(None, (self._stalls_after, self._ends_after)), default=0.0)
        while not self._ended:
            events = selector.select(min(patience, 5.0) or None)
            for key, _ in events:
                if key.data is None:
                    self._woken.recv(_CHUNK)
                    continue
                try:
                    for request in self._links[key.data].receive():
                        self._hear(key.data, request)
                except Lost:
                    selector.unregister(key.fileobj)
                    if key.data not in self._leaving:
                        self._lose(key.data)
            with self._turn:
                self._answer()
            if not events or self._told:
                self._look_for_stalls()

    def _hear(self, rank: int, request: TensorRequest) -> None:
        with self._known:
            if request.kind == "close":
                self._leaving.add(rank)
                if len(self._leaving) == self._ranks:
                    self._end("")
                elif names := self._negotiation.outstanding_of(rank):
                    self._end(
                        f"rank {rank} has shut down, while others wait for it to submit "
                        f"{_listed(names)} [R712]"
                    )
                return
            self._negotiation.add(rank, request)
            gone = self._leaving.intersection(self._negotiation.sets.get(request.process_set, ()))
            if gone:
                self._end(f"rank {min(gone)} has shut down, and will not submit {request.name!r} [R712]")

    def _answer(self) -> None:
        """Send ready responses to their members, and execute them here. The caller holds the lock `_turn`."""
        while not self._ended:
            with self._known:
                response = self._negotiation.take()
                members = () if response is None else self._negotiation.members_of(response)
            if response is None:
                return
            self._say(response, members)
            if 0 in members:
                try:
                    self._carry_out(response)
                except PeerLost as lost:
                    self._end(str(lost))

    def _say(self, response: Response, members: Sequence[int]) -> None:
        for rank in members:
            if rank:
                with contextlib.suppress(Lost):  # reported when its connection ends
                    self._links[rank].send(response)

    def _lose(self, rank: int) -> None:
        with self._known:
            names = self._negotiation.outstanding_of(rank)
        if names:
            self._end(f"rank {rank} has ended, while others wait for it to submit {_listed(names)} [R712]")
        else:
            self._end(f"rank {rank} has ended [R712]")

    def _end(self, why: str) -> None:
        """Stop the exchange on all ranks, with an error unless `why` is ""."""
        if self._ended:
            return
        self._ended = True
        response = Response(kind="close", requests=(), error=why)
        self._say(response, range(self._ranks))
        self._carry_out(response)
        with contextlib.suppress(OSError):
            self._wake.send(b"w")

    def _look_for_stalls(self) -> None:
        with self._known:
            late = self._negotiation.overdue(self._stalls_after or 1e9)
            too_late = self._negotiation.overdue(self._ends_after) if self._ends_after else []
        for name, seconds, there, missing in late:
            if name not in self._told:
                self._told.add(name)
                lasts = "; ".join(
                    f"rank {rank} has last submitted {self._negotiation.last_of(rank) or 'nothing'}"
                    for rank in missing
                )
                told = (
                    f"{name!r} was submitted by ranks {list(there)} {seconds:.0f} s ago, and not by ranks "
                    f"{list(missing)}; {lasts} [R713]"
                )
                print(f"ronde: {as_note(told)}", file=sys.stderr, flush=True)
        for name, seconds, there, missing in too_late[:1]:
            self._end(
                f"{name!r} was submitted by ranks {list(there)} {seconds:.0f} s ago, and not by ranks "
                f"{list(missing)} [R713]"
            )


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

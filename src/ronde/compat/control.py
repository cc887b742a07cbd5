"""How requests come to rank 0 and responses to all: one connection from each rank, pickled frames on it.

A rank whose connection ends is gone, and the others are told at once.
"""

from __future__ import annotations

import contextlib
import hmac
import pickle
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Sequence

from ronde.compat.negotiation import Negotiation, Request, Response
from ronde.errors import LaunchError

__all__ = ["Coordinator", "Link", "Lost", "connect"]

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
# Responses under way: while so many are, what becomes ready is gathered, and exchanged together.
_UNDER_WAY = 2
_JOINS_WITHIN_S = 60.0


class Lost(Exception):
    """The other end of a connection is gone."""


class Link:
    """One end of a connection; whole objects go out and come in."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = bytearray()
        self._sending = threading.Lock()

    def send(self, *messages: object) -> None:
        """Send each; from any thread.

        Raises:
            Lost: nobody is there.
        """
        frames = bytearray()
        for message in messages:
            data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            frames += _LENGTH.pack(len(data)) + data
        try:
            with self._sending:
                self.connection.sendall(frames)
        except OSError as error:
            raise Lost(str(error)) from None

    def receive(self) -> list[object]:
        """Wait for some bytes, and give what has come whole.

        Raises:
            Lost: nobody is there.
        """
        try:
            data = self.connection.recv(_CHUNK)
        except OSError as error:
            raise Lost(str(error)) from None
        if not data:
            raise Lost("the connection has ended")
        self._received += data
        found: list[object] = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                break
            found.append(pickle.loads(memoryview(self._received)[_LENGTH.size : end]))
            del self._received[:end]
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def connect(address: tuple[str, int], rank: int, token: bytes) -> Link:
    """This rank's connection to the coordinator.

    Raises:
        LaunchError: nobody answers there.
    """
    try:
        connection = socket.create_connection(address, timeout=_JOINS_WITHIN_S)
    except OSError as error:
        raise LaunchError(f"rank {rank} cannot reach rank 0 at {address[0]}:{address[1]}: {error}") from None
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(token + _LENGTH.pack(rank))
    return Link(connection)


class Coordinator:
    """Rank 0's thread that negotiates.

    Args:
        token: 16 bytes that each rank says first.
        stalls_after: seconds after which a tensor that some ranks have not submitted is told of; 0: never.
        ends_after: seconds after which that is an error on all ranks; 0: never.
    """

    def __init__(
        self,
        negotiation: Negotiation,
        ranks: int,
        host: str,
        token: bytes,
        *,
        stalls_after: float = 60.0,
        ends_after: float = 0.0,
    ) -> None:
        self._negotiation, self._ranks, self._token = negotiation, ranks, token
        self._stalls_after, self._ends_after = stalls_after, ends_after
        self._told: set[str] = set()
        self._server = socket.create_server((host, 0), backlog=ranks)
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._links: dict[int, Link] = {}
        self._leaving: set[int] = set()
        self._under_way = 0
        self._done, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="ronde coordinator", daemon=True)

    def start(self) -> None:
        """All ranks are about to connect."""
        self._thread.start()

    def done(self) -> None:
        """This rank has carried out a response; from any thread."""
        with contextlib.suppress(OSError):
            self._wake.send(b"d")

    def join(self) -> None:
        """Return when all ranks have left."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._accept()
            with selectors.DefaultSelector() as selector:
                for rank, link in self._links.items():
                    selector.register(link.connection, selectors.EVENT_READ, rank)
                selector.register(self._done, selectors.EVENT_READ, None)
                self._negotiate(selector)
        finally:
            for link in self._links.values():
                link.close()
            for each in (self._server, self._done, self._wake):
                each.close()

    def _accept(self) -> None:
        self._server.settimeout(_JOINS_WITHIN_S)
        while len(self._links) < self._ranks:
            connection, _ = self._server.accept()
            connection.settimeout(_JOINS_WITHIN_S)
            said = b""
            while len(said) < len(self._token) + _LENGTH.size:
                part = connection.recv(len(self._token) + _LENGTH.size - len(said))
                if not part:
                    break
                said += part
            if not hmac.compare_digest(said[: len(self._token)], self._token):
                connection.close()
                continue
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            (rank,) = _LENGTH.unpack(said[len(self._token) :])
            self._links[rank] = Link(connection)

    def _negotiate(self, selector: selectors.BaseSelector) -> None:
        patience = min(filter(None, (self._stalls_after, self._ends_after)), default=0.0)
        while len(self._leaving) < self._ranks:
            events = selector.select(min(patience, 5.0) or None)
            for key, _ in events:
                if key.data is None:
                    self._under_way -= len(self._done.recv(_CHUNK))
                    continue
                try:
                    for request in self._links[key.data].receive():
                        assert isinstance(request, Request)
                        self._hear(key.data, request)
                except Lost:
                    selector.unregister(key.fileobj)
                    if key.data not in self._leaving:
                        self._lose(key.data)
                        return
            self._answer()
            if not events or self._told:
                self._look_for_stalls()

    def _hear(self, rank: int, request: Request) -> None:
        if request.kind == "close":
            self._leaving.add(rank)
            if len(self._leaving) == self._ranks:
                self._say(Response(kind="close", requests=()), range(self._ranks))
            elif names := self._negotiation.outstanding_of(rank):
                self._fail(f"rank {rank} has shut down, while others wait for it to submit {_listed(names)}")
            return
        self._negotiation.add(rank, request)
        if self._leaving and rank not in self._leaving:
            gone = sorted(self._leaving)
            self._fail(f"rank {gone[0]} has shut down, and will not submit {request.name!r}")

    def _answer(self) -> None:
        while self._under_way < _UNDER_WAY:
            response = self._negotiation.take()
            if response is None:
                return
            if 0 in (members := self._negotiation.members_of(response)):
                self._under_way += 1
            self._say(response, members)

    def _say(self, response: Response, members: Sequence[int]) -> None:
        for rank in members:
            with contextlib.suppress(Lost):  # which is heard of by its own connection
                self._links[rank].send(response)

    def _lose(self, rank: int) -> None:
        names = self._negotiation.outstanding_of(rank)
        waited = f", while others wait for it to submit {_listed(names)}" if names else ""
        self._fail(f"rank {rank} has ended{waited}")

    def _fail(self, why: str) -> None:
        """Nothing can be exchanged any more."""
        self._say(Response(kind="close", requests=(), error=why), range(self._ranks))

    def _look_for_stalls(self) -> None:
        for name, seconds, there, missing in self._negotiation.overdue(self._stalls_after or 1e9):
            if name not in self._told:
                self._told.add(name)
                lasts = "; ".join(
                    f"rank {rank} has last submitted {self._negotiation.last_of(rank) or 'nothing'}"
                    for rank in missing
                )
                print(
                    f"ronde: {name!r} was submitted by ranks {list(there)} {seconds:.0f} s ago, and not by "
                    f"ranks {list(missing)}; {lasts}",
                    file=sys.stderr,
                    flush=True,
                )
        if self._ends_after:
            for name, seconds, there, missing in self._negotiation.overdue(self._ends_after):
                self._fail(
                    f"{name!r} was submitted by ranks {list(there)} {seconds:.0f} s ago, and not by ranks "
                    f"{list(missing)}"
                )
                return


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

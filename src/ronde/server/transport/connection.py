"""A worker's connection to one server: a socket, and the session on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from ronde.errors import UsageError
from ronde.server.transport.buffers import BufferPool
from ronde.server.transport.envelope import (
    Kind,
    WireError,
    close_envelope,
    open_envelope,
    read_refusal,
    write_refusal,
)
from ronde.server.transport.handshake import ClientHandshake, Session

__all__ = ["SLICE_MS", "Connection"]

SLICE_MS = 20
"""Milliseconds that a blocking receive lasts at most."""

_HANDSHAKE_S = 1.0
_MOST_FAILURES = 20  # a damaged handshake looks like one with another token


class Connection:
    """Socket to one server, with a session.

    A new session is opened when the server does not know the old one. Messages without a session are dropped:
    `opened` is called when there is one, to send them again.

    Args:
        context, poller: those of all connections; the socket is registered there.
        endpoint: the server's endpoint.
        token: the run's token.
        pool: memory for large frames.
        opened: function that is called when a session was opened.
        failed: function that is called with kind and reason when none can be opened.

    Raises:
        UsageError: the endpoint is malformed.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        poller: zmq.Poller,
        endpoint: str,
        token: bytes,
        pool: BufferPool,
        *,
        opened: Callable[[], None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._context, self._poller = context, poller
        self._endpoint, self._token, self._pool = endpoint, token, pool
        self._opened, self._failed = opened, failed
        self._handshake: ClientHandshake | None = None
        self._begun_at = float("-inf")
        self._failures = 0
        self._session: Session | None = None
        self.socket = self._connect()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def post(self, frames: Sequence[Any], request: int) -> None:
        """Send a message without waiting; without a session, ask for one instead."""
        if self._session is not None:
            self._put(self._session.sealer.seal(frames, request))
        elif time.monotonic() - self._begun_at > _HANDSHAKE_S:
            self._begin()

    def take(self, frames: Sequence[Any]) -> list[Any] | None:
        """Decrypt a message of the server; None if it belongs to a handshake.

        None, too, if it is damaged or of an earlier session: the client will ask again.
        """
        try:
            envelope = open_envelope(frames)
            if envelope.kind is Kind.SEALED and self._session is not None:
                opened = self._session.opener.open(envelope, frames[1:])
                self._failures = 0
                return opened
            if envelope.kind is Kind.RESPONSE:
                self._finish(bytes(envelope.body))
            elif envelope.kind is Kind.REFUSED:
                self._refused(*read_refusal(envelope.body))
        except WireError:
            pass
        return None

    def renew(self) -> None:
        """Replace the socket, and begin a new session."""
        self._poller.unregister(self.socket)
        self.socket.close(linger=0)
        self.socket = self._connect()
        self._begin()

    def _connect(self) -> Any:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RCVTIMEO, SLICE_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        try:
            socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise UsageError(
                f"there can be no server at {self._endpoint} ({error.strerror}): it listens at "
                "tcp://HOST:PORT or ipc://NAME [R433]"
            ) from None
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _begin(self) -> None:
        self._session = None
        self._handshake = ClientHandshake(self._token)
        self._begun_at = time.monotonic()
        self._put([close_envelope(Kind.CHALLENGE) + self._handshake.challenge])

    def _finish(self, response: bytes) -> None:
        if self._handshake is None or not self._handshake.answers(response):
            return  # of an earlier challenge
        try:
            proof, session = self._handshake.finish(response, self._pool)
        except WireError as error:
            self._fail(error.kind, str(error))
            return
        self._put([close_envelope(Kind.PROOF) + proof])
        self._handshake, self._session = None, session
        self._opened()

    def _refused(self, kind: str, why: str) -> None:
        if kind != "session" or self._handshake is None:  # else it is about the session before
            self._fail(kind, why)

    def _fail(self, kind: str, why: str) -> None:
        self._failures += 1
        if self._failures <= _MOST_FAILURES:
            self._begin()
            return
        self._failures, self._handshake, self._session = 0, None, None
        self._put(list(write_refusal(kind, why)))  # the server names this client to its operator
        self._failed(kind, why)

    def _put(self, frames: list[Any]) -> None:
        """Send frames without waiting.

        ZeroMQ drops a connection for good if the other end violates its protocol, as a broken line may seem
        to do. Then the socket is replaced, and requests are sent again in a new session.
        """
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self.renew()

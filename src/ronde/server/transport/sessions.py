"""A server's sessions with clients that have proven the run's token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ronde.server.transport.buffers import BufferPool
from ronde.server.transport.envelope import Envelope, Kind, WireError, close_envelope
from ronde.server.transport.handshake import ServerHandshake, Session

__all__ = ["Sessions"]

# A client whose session or handshake was forgotten begins anew.
_MOST = 16_384

T = TypeVar("T")


class Sessions:
    """Sessions and unfinished handshakes, by the identity of a connection.

    Args:
        token: the run's token.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._pool = BufferPool()
        self._begun: dict[bytes, ServerHandshake] = {}
        self._sessions: dict[bytes, Session] = {}

    def respond(self, identity: bytes, challenge: bytes) -> list[bytes]:
        """Begin a handshake, and return the frames of its response.

        It ends the session of the connection.

        Raises:
            WireError: the challenge is malformed.
        """
        handshake = ServerHandshake(self._token, challenge)
        self._sessions.pop(identity, None)
        _remember(self._begun, identity, handshake)
        return [close_envelope(Kind.RESPONSE) + handshake.response]

    def begin(self, identity: bytes, proof: bytes) -> None:
        """Begin a session with a client that proves the token.

        Raises:
            WireError: the proof does not fit the connection's last challenge.
        """
        handshake = self._begun.pop(identity, None)
        if handshake is None:
            raise WireError("session", "there was no challenge before this proof [R427]")
        _remember(self._sessions, identity, handshake.finish(proof, self._pool))

    def open(self, identity: bytes, envelope: Envelope, frames: Sequence[Any]) -> list[Any]:
        """Decrypt a message.

        Raises:
            WireError: the connection has no session, or the message does not belong to it.
        """
        session = self._sessions.get(identity)
        if session is None:
            raise WireError("session", "this connection has not proven the token of the run [R427]")
        return session.opener.open(envelope, frames)

    def seal(self, identity: bytes, frames: Sequence[Any], request: int) -> list[Any] | None:
        """Encrypt a message; None if the connection has no session."""
        session = self._sessions.get(identity)
        return None if session is None else session.sealer.seal(frames, request)


def _remember(known: dict[bytes, T], identity: bytes, value: T) -> None:
    known.pop(identity, None)
    if len(known) >= _MOST:
        del known[next(iter(known))]
    known[identity] = value

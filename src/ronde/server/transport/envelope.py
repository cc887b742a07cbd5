"""Envelopes of the wire: the header of a handshake or a sealed message.

Frame 0 begins, little-endian, with magic, version, kind, 0, counter and request. Only the request's id and
the sizes of frames can be read without the keys of a session.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ronde.errors import RondeError

__all__ = [
    "Envelope",
    "Kind",
    "WireError",
    "close_envelope",
    "open_envelope",
    "read_refusal",
    "write_refusal",
]

_MAGIC = b"RNDE"
_VERSION = 2
_HEADER = struct.Struct("<4sBBHQQ")


class Kind(enum.IntEnum):
    """Contents of an envelope.

    Attributes:
        CHALLENGE: a client's public key, for a new session.
        RESPONSE: the client's public key, the server's, and the proof of the server.
        PROOF: the proof of the client.
        SEALED: an encrypted message of a session.
        REFUSED: a refusal that says nothing secret, to a sender without a session.
    """

    CHALLENGE = 1
    RESPONSE = 2
    PROOF = 3
    SEALED = 4
    REFUSED = 5


_KINDS = {int(each): each for each in Kind}


class WireError(RondeError):
    """Raised when frames are not a valid message, or a request is refused.

    Attributes:
        kind: short name under which such errors are counted.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Envelope(NamedTuple):
    """The header of frame 0, and the rest of the frame.

    Attributes:
        counter: number of a sealed message of its session and sender; 0 in a handshake.
        request: id of the request, or of the request that is answered; 0 in a handshake.
        header: bytes of the header.
        body: bytes behind the header.
    """

    kind: Kind
    counter: int
    request: int
    header: memoryview
    body: memoryview


def close_envelope(kind: Kind, counter: int = 0, request: int = 0) -> bytes:
    """Encode the header of an envelope."""
    return _HEADER.pack(_MAGIC, _VERSION, kind, 0, counter, request)


def open_envelope(frames: Sequence[Any]) -> Envelope:
    """Decode the header of frame 0; proves nothing about its sender.

    Raises:
        WireError: the frames are not of ronde, or of another version.
    """
    first = memoryview(frames[0] if frames else b"")
    if first.nbytes < _HEADER.size:
        raise WireError(
            "truncated", f"the first of {len(frames)} frames has less than {_HEADER.size} bytes [R428]"
        )
    header, body = first[: _HEADER.size], first[_HEADER.size :]
    magic, version, kind, _, counter, request = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise WireError("magic", "not a message of ronde [R427]")
    if version != _VERSION:
        raise WireError(
            "version", f"version {version} of the protocol; this is version {_VERSION}: use one ronde [R427]"
        )
    known = _KINDS.get(kind)
    if known is None:
        raise WireError("envelope", f"there is no kind {kind} of envelope [R428]")
    return Envelope(known, counter, request, header, body)


def write_refusal(kind: str, why: str, request: int = 0) -> list[bytes]:
    """Encode a refusal to a sender without a session."""
    return [close_envelope(Kind.REFUSED, request=request) + json.dumps([kind, why[:300]]).encode()]


def read_refusal(body: memoryview) -> tuple[str, str]:
    """Decode kind and reason of a refusal; both are unproven.

    Raises:
        WireError: the refusal is malformed.
    """
    try:
        match json.loads(bytes(body)):
            case [str(kind), str(why)]:
                return kind, why[:300]
    except (ValueError, RecursionError):
        pass
    raise WireError("envelope", "a refusal is a kind and a reason [R428]")

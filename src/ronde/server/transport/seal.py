"""Encryption of the messages of a session: AES-256-GCM, with a nonce from a counter.

A counter is never used twice with a key: each handshake makes new keys, one for each direction. The receiver
accepts only growing counters, so a repeated message is refused like a changed one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import cryptography
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ronde.errors import UsageError
from ronde.server.transport.buffers import BufferPool
from ronde.server.transport.envelope import Envelope, Kind, WireError, close_envelope, open_envelope

if not hasattr(AESGCM, "encrypt_into"):
    raise UsageError(
        f"parameter servers need cryptography 47 or newer, not {cryptography.__version__}: pip install "
        "'ronde[server]' [R419]"
    )

__all__ = ["Opener", "Sealer"]

_TAG_BYTES = 16
# The library encrypts less than 2 GiB at once, so larger frames have several pieces, each with a tag.
_PIECE_BYTES = 1 << 30
_NONCE = struct.Struct("<QI")


class Sealer:
    """Encrypts the messages of one direction of a session.

    Args:
        key: 32 bytes, of no other sealer.
        pool: memory for large frames.
    """

    def __init__(self, key: bytes, pool: BufferPool) -> None:
        self._cipher = AESGCM(key)
        self._pool = pool
        self._counter = 0

    def seal(self, frames: Sequence[Any], request: int) -> list[Any]:
        """Encrypt a message; its frames may change afterwards.

        Args:
            request: id of the request, readable by all.
        """
        self._counter += 1
        nonces = _nonces(self._counter)
        header = close_envelope(Kind.SEALED, self._counter, request)
        first, *rest = frames
        sealed: list[Any] = [header + self._cipher.encrypt(next(nonces), first, header)]
        sealed += [self._seal(memoryview(frame).cast("B"), nonces) for frame in rest]
        return sealed

    def _seal(self, frame: memoryview, nonces: Iterator[bytes]) -> memoryview:
        pieces = _pieces(frame.nbytes, _PIECE_BYTES)
        sealed = memoryview(self._pool.take(frame.nbytes + pieces * _TAG_BYTES))
        for number in range(pieces):
            piece = _piece(frame, number, _PIECE_BYTES)
            into = _piece(sealed, number, _PIECE_BYTES + _TAG_BYTES)
            self._cipher.encrypt_into(next(nonces), piece, None, into)
        return sealed


class Opener:
    """Decrypts the messages of one direction of a session.

    Args:
        key: the sealer's key.
        pool: memory for large frames.
    """

    def __init__(self, key: bytes, pool: BufferPool) -> None:
        self._cipher = AESGCM(key)
        self._pool = pool
        self._counter = 0

    def open(self, frames: Sequence[Any]) -> list[memoryview]:
        """Decrypt a message.

        Raises:
            WireError: the message was changed, cut or repeated, or has another key.
        """
        envelope = open_envelope(frames)
        if envelope.kind is not Kind.SEALED:
            raise WireError("seal", "the message is not sealed [R427]")
        if envelope.counter <= self._counter:
            raise WireError("replay", f"message {envelope.counter} of this session came before [R427]")
        try:
            opened = self._open(envelope, frames[1:])
        except InvalidTag:
            raise WireError(
                "seal", "the seal does not fit the message: it was changed or damaged on its way [R428]"
            ) from None
        self._counter = envelope.counter
        return opened

    def _open(self, envelope: Envelope, rest: Sequence[Any]) -> list[memoryview]:
        nonces = _nonces(envelope.counter)
        first = self._cipher.decrypt(next(nonces), envelope.body, envelope.header)
        return [memoryview(first), *[self._open_frame(memoryview(frame).cast("B"), nonces) for frame in rest]]

    def _open_frame(self, sealed: memoryview, nonces: Iterator[bytes]) -> memoryview:
        pieces = _pieces(sealed.nbytes, _PIECE_BYTES + _TAG_BYTES)
        nbytes = sealed.nbytes - pieces * _TAG_BYTES
        if nbytes < 0 or pieces != _pieces(nbytes, _PIECE_BYTES):
            raise InvalidTag
        frame = memoryview(self._pool.take(nbytes))
        for number in range(pieces):
            piece = _piece(sealed, number, _PIECE_BYTES + _TAG_BYTES)
            self._cipher.decrypt_into(next(nonces), piece, None, _piece(frame, number, _PIECE_BYTES))
        return frame


def _nonces(counter: int) -> Iterator[bytes]:
    """Yield the nonces of a message's pieces: their order cannot be changed."""
    for number in range(1 << 32):
        yield _NONCE.pack(counter, number)


def _pieces(nbytes: int, size: int) -> int:
    """Return the number of pieces; an empty frame has one, for its tag."""
    return max(-(-nbytes // size), 1)


def _piece(frame: memoryview, number: int, size: int) -> memoryview:
    return frame[number * size : (number + 1) * size]

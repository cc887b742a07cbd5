"""Encryption of the messages of a session: AES-256-GCM, with a nonce from a counter.

A counter is never used twice with a key: each handshake makes new keys, one for each direction. The receiver
accepts only growing counters, so a repeated message is refused like a changed one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ronde.server.transport.buffers import BufferPool
from ronde.server.transport.envelope import Envelope, Kind, WireError, close_envelope

__all__ = ["Opener", "Sealer"]

_TAG_BYTES = 16
# The library encrypts less than 2 GiB at once, so larger frames have several pieces, each with a tag.
_PIECE_BYTES = 1 << 30


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
        header = close_envelope(Kind.SEALED, self._counter, request)
        sealed: list[Any] = [header + self._cipher.encrypt(_nonce(self._counter, 0), frames[0], header)]
        number = 1
        for frame in frames[1:]:
            nbytes = memoryview(frame).nbytes
            pieces = _pieces(nbytes, _PIECE_BYTES)
            into = self._pool.take(nbytes + pieces * _TAG_BYTES)
            for piece, target in _in_pieces(frame, into, pieces, _PIECE_BYTES, _PIECE_BYTES + _TAG_BYTES):
                self._cipher.encrypt_into(_nonce(self._counter, number), piece, None, target)
                number += 1
            sealed.append(into)
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

    def open(self, envelope: Envelope, frames: Sequence[Any]) -> list[Any]:
        """Decrypt a message.

        Args:
            envelope: envelope of the first frame.
            frames: the frames behind it.

        Raises:
            WireError: the message was changed, cut or repeated, or has another key.
        """
        if envelope.counter <= self._counter:
            raise WireError("replay", f"message {envelope.counter} of this session came before [R427]")
        try:
            opened = self._open(envelope, frames)
        except InvalidTag:
            raise WireError(
                "seal", "the seal does not fit the message: it was changed or damaged on its way [R428]"
            ) from None
        self._counter = envelope.counter
        return opened

    def _open(self, envelope: Envelope, frames: Sequence[Any]) -> list[Any]:
        counter = envelope.counter
        opened: list[Any] = [self._cipher.decrypt(_nonce(counter, 0), envelope.body, envelope.header)]
        number = 1
        for frame in frames:
            sealed = memoryview(frame)
            pieces = _pieces(sealed.nbytes, _PIECE_BYTES + _TAG_BYTES)
            nbytes = sealed.nbytes - pieces * _TAG_BYTES
            if nbytes < 0 or pieces != _pieces(nbytes, _PIECE_BYTES):
                raise InvalidTag
            into = self._pool.take(nbytes)
            for piece, target in _in_pieces(sealed, into, pieces, _PIECE_BYTES + _TAG_BYTES, _PIECE_BYTES):
                self._cipher.decrypt_into(_nonce(counter, number), piece, None, target)
                number += 1
            opened.append(into)
        return opened


# A nonce is a message's counter and a piece's number, so that pieces cannot change their order.
_nonce = struct.Struct("<QI").pack


def _pieces(nbytes: int, size: int) -> int:
    """Return the number of pieces; an empty frame has one, for its tag."""
    return -(-nbytes // size) or 1


def _in_pieces(
    source: Any, target: Any, pieces: int, source_size: int, target_size: int
) -> Iterable[tuple[Any, Any]]:
    """Return corresponding pieces of a frame and of its target."""
    if pieces == 1:
        return ((source, target),)
    whole, into = memoryview(source), memoryview(target)
    return (
        (
            whole[number * source_size : (number + 1) * source_size],
            into[number * target_size : (number + 1) * target_size],
        )
        for number in range(pieces)
    )

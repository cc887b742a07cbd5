"""The protocol of launcher and agents, as frames over the pipes of ssh.

    launcher -> agent   HELLO, CLOCK, BRING, SAVED, BROUGHT, DIAL, MESH, START, then SIGNAL, LOOK, RELEASE,
                        END, CLOSED, CLOCK
    agent -> launcher   READY, CLOCK, BROUGHT, DIALED, MESHED, STARTED, then OUT, ERR, BEAT, CLOCK, PIECE,
                        SAVED, NOTICE, DEATH, ERROR, FROZEN, STALL, ABORT, EVIDENCE, ENDED, at last LAST

`ronde doctor` says EXAMINE and MEASURE in place of MESH and START.
The end of the launcher's pipe ends the ranks.

A frame is its kind (one byte), its length (four, big-endian), its content. Before its first one an agent
writes `MAGIC`: the start-up files of a login shell may print before.
"""

from __future__ import annotations

import enum
import json
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

from ronde.launch.write_all import write_all

__all__ = ["MAGIC", "FrameError", "FrameKind", "Sender", "frames", "skip_to_magic", "unpack"]

MAGIC = b"\0ronde agent 1\n"
_HEAD = struct.Struct(">cI")
# Far above any frame of ours: another program asks for more.
_LARGEST = 64 << 20
_CHUNK = 65536


class FrameError(Exception):
    """Raised for bytes that do not form a frame, from another program."""


class FrameKind(bytes, enum.Enum):
    """Kinds of frames, each with its content in brackets."""

    HELLO = b"h"  # [JSON: what the run is, see `agent`]
    READY = b"r"  # [JSON: what the host is]
    BRING = b"B"  # [JSON: a run directory] checkpoints to go on from come for it
    SAVED = b"p"  # [see `mirror`] of a file of a checkpoint, or of a published version
    BROUGHT = b"u"  # [nothing] these were all; from an agent [JSON: what is wrong with them there]
    DIAL = b"d"  # [JSON: addresses to try]
    DIALED = b"D"  # [JSON: which of them answered]
    MESH = b"m"  # [JSON: the other hosts' addresses and ports]
    MESHED = b"M"  # [JSON: which of them did not answer]
    EXAMINE = b"a"  # [JSON: the run that is to come] what is wrong with you? Of `ronde doctor`
    EXAMINED = b"A"  # [JSON: findings, port at which others measure the way here]
    MEASURE = b"t"  # [JSON: address and port of another host] how long is the way there, and how wide?
    MEASURED = b"T"  # [JSON: seconds, bytes per second in both directions]
    START = b"s"  # [JSON: the host's part of the run]
    SIGNAL = b"g"  # [number] pass it on to the ranks
    LOOK = b"k"  # [reason] say where your ranks are
    END = b"e"  # [nothing] a rank elsewhere has failed: end yours
    CLOSED = b"c"  # [kind] nobody reads what comes by frames of this kind
    BEAT = b"b"  # [JSON: steps, samples, for what ranks wait] I am still there
    CLOCK = b"C"  # [JSON: when it was asked; from an agent also its clocks] what time is it there
    STARTED = b"S"  # [JSON: processes of ranks]
    OUT = b"1"  # [bytes] rank 0 has printed them
    ERR = b"2"  # [bytes] on stderr
    ENDED = b"n"  # [nothing] the host's ranks have
    RELEASE = b"o"  # [nothing] the ranks of all hosts have ended: end your servers
    DEATH = b"x"  # [JSON] the end of a rank process
    ERROR = b"E"  # [JSON] what a rank has written about its failure
    STALL = b"w"  # [JSON: whether it is over, evidence] ranks wait for one that does not come
    ABORT = b"q"  # [JSON: kind, said] the run is to be ended, though no rank has failed
    FROZEN = b"z"  # [JSON: evidence] what was known of the ranks before any was ended
    EVIDENCE = b"v"  # [JSON] what is known of the ranks, as LOOK has asked for it
    NOTICE = b"N"  # [words] for the user
    PIECE = b"f"  # [see `mirror`] of a file of the run directory
    LAST = b"l"  # [JSON] how the host's part has ended


class Sender:
    """Writes frames to a descriptor; may be used by several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, kind: FrameKind, content: bytes | str | dict[str, Any] = b"") -> None:
        """Send one frame.

        Raises:
            OSError: the reader is gone.
        """
        if isinstance(content, dict):
            content = json.dumps(content)
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        with self._lock:
            write_all(self._descriptor, _HEAD.pack(kind.value, len(data)) + data)


def frames(descriptor: int) -> Iterator[tuple[FrameKind, bytes]]:
    """The frames that come, until the other side is gone.

    Raises:
        FrameError: the bytes form no frame.
    """
    while True:
        head = _exactly(descriptor, _HEAD.size)
        if head is None:
            return
        kind, length = _HEAD.unpack(head)
        if length > _LARGEST:
            raise FrameError(f"a frame of {length} bytes [R117]")
        content = _exactly(descriptor, length)
        if content is None:
            return
        try:
            yield FrameKind(kind), content
        except ValueError:
            raise FrameError(f"a frame of the kind {kind!r} [R117]") from None


def skip_to_magic(descriptor: int) -> bool:
    """Read up to the end of `MAGIC`; False for the end of the stream."""
    seen = b""
    while not seen.endswith(MAGIC):
        byte = _read(descriptor, 1)
        if not byte:
            return False
        seen = (seen + byte)[-len(MAGIC) :]
    return True


def unpack(content: bytes) -> dict[str, Any]:
    """The JSON of a frame.

    Raises:
        FrameError: the content is not of JSON.
    """
    try:
        found = json.loads(content)
    except ValueError as error:
        raise FrameError(str(error)) from None
    if not isinstance(found, dict):
        raise FrameError("a frame without fields [R117]")
    return found


def _exactly(descriptor: int, length: int) -> bytes | None:
    parts: list[bytes] = []
    while length:
        data = _read(descriptor, min(length, _CHUNK))
        if not data:
            return None
        parts.append(data)
        length -= len(data)
    return b"".join(parts)


def _read(descriptor: int, length: int) -> bytes:
    try:
        return os.read(descriptor, length)
    except OSError:  # the connection is broken: as if it had ended
        return b""

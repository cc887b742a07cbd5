"""The protocol of launcher and agents, as frames over the pipes of ssh.

    launcher -> agent   HELLO, CLOCK, BRING, SAVED, BROUGHT, DIAL, MESH, START, then SIGNAL, LOOK, RELEASE,
                        END, CLOSED, CLOCK
    agent -> launcher   READY, CLOCK, BROUGHT, DIALED, MESHED, STARTED, then OUT, ERR, BEAT, CLOCK, PIECE,
                        SAVED, NOTICE, DEATH, ERROR, FROZEN, STALL, ABORT, EVIDENCE, ENDED, at last LAST

`ronde doctor` sends EXAMINE and MEASURE in place of MESH and START. The end of the launcher's pipe ends the
ranks.

A frame is its kind (one byte), its length (four, big-endian), its content. Before its first frame an agent
writes `MAGIC`, because start-up files of a login shell may print something.
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
# Far above the size of any frame: a larger one comes from another program.
_LARGEST = 64 << 20
_CHUNK = 65536


class FrameError(Exception):
    """Raised for bytes that do not form a frame, from another program."""


class FrameKind(bytes, enum.Enum):
    """Kinds of frames, each with its content in brackets."""

    HELLO = b"h"  # [JSON: description of the run, see `agent`]
    READY = b"r"  # [JSON: description of the host]
    BRING = b"B"  # [JSON: a run directory] checkpoints to resume from follow, for this directory
    SAVED = b"p"  # [see `mirror`] of a file of a checkpoint, or of a published version
    BROUGHT = b"u"  # [nothing] end of the checkpoints; from an agent [JSON: error in receiving them]
    DIAL = b"d"  # [JSON: addresses to try]
    DIALED = b"D"  # [JSON: the addresses that answered]
    MESH = b"m"  # [JSON: the other hosts' addresses and ports]
    MESHED = b"M"  # [JSON: the hosts that did not answer]
    EXAMINE = b"a"  # [JSON: the planned run] asks for problems of the host, for `ronde doctor`
    EXAMINED = b"A"  # [JSON: findings, port at which others measure the link to this host]
    # [JSON: address and port of another host] asks for latency and bandwidth of the link to it
    MEASURE = b"t"
    MEASURED = b"T"  # [JSON: seconds, bytes per second in both directions]
    START = b"s"  # [JSON: the host's part of the run]
    SIGNAL = b"g"  # [number] pass this signal on to the ranks
    LOOK = b"k"  # [reason] asks for evidence of the ranks
    END = b"e"  # [nothing] a rank elsewhere has failed: end the ranks
    CLOSED = b"c"  # [kind] frames of this kind are no longer read
    BEAT = b"b"  # [JSON: steps, samples, collectives that ranks wait for] sign of life
    CLOCK = b"C"  # [JSON: time of the question; from an agent also its clocks] compares clocks
    STARTED = b"S"  # [JSON: processes of ranks]
    OUT = b"1"  # [bytes] printed by rank 0 on stdout
    ERR = b"2"  # [bytes] printed by rank 0 on stderr
    ENDED = b"n"  # [nothing] the host's ranks have ended
    RELEASE = b"o"  # [nothing] the ranks of all hosts have ended: end your servers
    DEATH = b"x"  # [JSON] the end of a rank process
    ERROR = b"E"  # [JSON] the error file of a rank
    STALL = b"w"  # [JSON: whether this ends the run, evidence] ranks wait for one that does not come
    ABORT = b"q"  # [JSON: kind, said] asks for the end of the run, though no rank has failed
    FROZEN = b"z"  # [JSON] evidence of the ranks from before any was ended
    EVIDENCE = b"v"  # [JSON] evidence of the ranks, the answer to LOOK
    NOTICE = b"N"  # [text] a message for the user
    PIECE = b"f"  # [see `mirror`] of a file of the run directory
    LAST = b"l"  # [JSON] the end of the host's part


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
    """Yield the received frames until the other side is gone.

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
    """Decode the JSON of a frame.

    Raises:
        FrameError: the content is not JSON.
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

"""Frames in files: a JSON value and arrays, with length and checksum.

A frame is a header (magic, bytes of the JSON, bytes of the arrays, XXH3 of everything else), the JSON
followed by dtype and shape of each array, then the arrays' bytes. Arrays are written without a copy.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ronde.server.array_codec import Array, bytes_of, description, nbytes_of, restored

__all__ = ["DamagedFrame", "LogFrame", "frame", "frames_of", "has_frame", "write"]

_MAGIC = b"RNDF"
_LENGTHS = struct.Struct("<4sIQ")
_CHECKSUM = struct.Struct("<Q")
_HEADER_BYTES = _LENGTHS.size + _CHECKSUM.size
_ALIGNMENT = 8  # of frames and of their first array: compiled loops take aligned arrays
_MOST_BUFFERS = 1024  # IOV_MAX of Linux


class LogFrame(NamedTuple):
    """A frame that was read: JSON value, arrays, and end offset in the file."""

    meta: Any
    arrays: list[Array]
    end: int


class DamagedFrame(Exception):
    """Raised for bytes that do not form a frame.

    Attributes:
        offset: position of these bytes in the file.
    """

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


def frame(meta: Any, arrays: Sequence[Array] = ()) -> list[Any]:
    """Return the buffers of a frame, in order; arrays are not copied."""
    told = json.dumps([meta, [description(array) for array in arrays]], separators=(",", ":")).encode()
    told += b" " * (-len(told) % _ALIGNMENT)
    bodies: list[Any] = [bytes_of(array) for array in arrays if array.size]
    bodies.append(bytes(-sum(body.nbytes for body in bodies) % _ALIGNMENT))
    lengths = _LENGTHS.pack(_MAGIC, len(told), sum(map(len, bodies)))
    return [lengths + _CHECKSUM.pack(_sum(lengths, told, *bodies)), told, *bodies]


def write(descriptor: int, buffers: Sequence[Any]) -> int:
    """Write all buffers, one after the other, and return the number of bytes.

    Raises:
        OSError: only a part could be written.
    """
    left = [memoryview(each) for each in buffers if len(each)]
    total = sum(each.nbytes for each in left)
    while left:
        written = os.writev(descriptor, left[:_MOST_BUFFERS])
        done = 0
        while done < len(left) and written >= left[done].nbytes:
            written -= left[done].nbytes
            done += 1
        left = left[done:]
        if written:
            left[0] = left[0][written:]
    return total


def frames_of(path: Path) -> Iterator[LogFrame]:
    """Yield the frames of a file. Arrays are writable; writes do not reach the file.

    Raises:
        DamagedFrame: the next bytes are not a frame, or its checksum differs.
    """
    content = memoryview(_map(path))
    offset = 0
    while offset < len(content):
        found = _read(content, offset)
        yield found
        offset = found.end


def has_frame(path: Path, offset: int) -> bool:
    """Return whether a whole frame begins at or after `offset`.

    If so, the bytes before it are damaged, not a torn write.
    """
    raw = _map(path)
    content = memoryview(raw)
    at = raw.find(_MAGIC, offset)
    while at >= 0:
        try:
            _read(content, at)
        except DamagedFrame:
            at = raw.find(_MAGIC, at + 1)
        else:
            return True
    return False


def _map(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Private and writable: compiled loops are made for arrays that may be written to.
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""


def _read(content: memoryview, offset: int) -> LogFrame:
    if offset + _HEADER_BYTES > len(content):
        raise DamagedFrame(offset, f"{len(content) - offset} bytes are less than a header [R408]")
    magic, told_bytes, body_bytes = _LENGTHS.unpack_from(content, offset)
    if magic != _MAGIC:
        raise DamagedFrame(offset, "the header of a frame is missing [R408]")
    begin = offset + _HEADER_BYTES
    middle, end = begin + told_bytes, begin + told_bytes + body_bytes
    if end > len(content):
        raise DamagedFrame(
            offset,
            f"{end - offset} bytes are expected, and {len(content) - offset} are left in the file [R408]",
        )
    (checksum,) = _CHECKSUM.unpack_from(content, offset + _LENGTHS.size)
    if checksum != _sum(content[offset : offset + _LENGTHS.size], content[begin:end]):
        raise DamagedFrame(offset, "the checksum is another")
    meta, described = json.loads(bytes(content[begin:middle]))
    arrays: list[Array] = []
    for name, shape in described:
        dtype = np.dtype(name)
        first, middle = middle, middle + nbytes_of(dtype, shape)
        arrays.append(restored(content[first:middle], dtype, shape))
    return LogFrame(meta, arrays, end)


def _sum(*parts: Any) -> int:
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()

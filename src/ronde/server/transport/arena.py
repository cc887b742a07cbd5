"""A worker's memory that servers on its host map: large arrays are placed there.

The worker allocates it segment by segment and announces the segments; a server opens them through
`/proc/PID/fd`, so neither end can leave files behind. An array's place is one integer: its segment's number
and a byte offset.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from ronde.comm.shared_segment import map_memory, open_of_peer, reserve
from ronde.server.array_codec import Array
from ronde.server.transport.wire import WireError

__all__ = ["OwnArena", "PeerArena"]

_ALIGNMENT = 4096
_SEGMENT_BYTES = 16 << 20
_SEGMENT_SHIFT = 44  # bits of the byte offset


class _Segment:
    """A stretch of shared memory."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.whole = np.frombuffer(memory, np.uint8)
        self.address = self.whole.ctypes.data

    def holds(self, array: Array) -> bool:
        offset = array.ctypes.data - self.address
        return offset >= 0 and offset + array.nbytes <= len(self.whole)


class _Arena:
    """Base of both sides of an arena."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def place(self, array: Array) -> int | None:
        """Return a contiguous array's place in the arena; None if it lies elsewhere."""
        if not array.nbytes or not array.flags.c_contiguous:
            return None
        for number, segment in enumerate(self._segments):
            if segment.holds(array):
                return number << _SEGMENT_SHIFT | (array.ctypes.data - segment.address)
        return None

    def view(self, place: int, nbytes: int) -> memoryview:
        """Return the bytes at a place.

        Raises:
            WireError: the place is not in the arena.
        """
        number, offset = place >> _SEGMENT_SHIFT, place & (1 << _SEGMENT_SHIFT) - 1
        if not 0 <= number < len(self._segments) or nbytes < 0:
            raise WireError("arena", f"{nbytes} bytes at {place} are outside of the shared memory [R429]")
        memory = self._segments[number].memory
        if offset + nbytes > len(memory):
            raise WireError(
                "arena", f"{nbytes} bytes from {offset} exceed a segment of {len(memory)} bytes [R429]"
            )
        return memoryview(memory)[offset : offset + nbytes]


class OwnArena(_Arena):
    """The worker's side of its arena, which grows on demand."""

    def __init__(self) -> None:
        super().__init__()
        self._descriptors: list[int] = []
        self._sizes: list[int] = []
        # Free stretches: segment, offset, size.
        self._free: list[tuple[int, int, int]] = []

    @property
    def described(self) -> list[list[int]]:
        """Pid, descriptor, inode and size of each segment, for servers to open them."""
        return [
            [os.getpid(), descriptor, os.fstat(descriptor).st_ino, size]
            for descriptor, size in zip(self._descriptors, self._sizes, strict=True)
        ]

    def take(self, nbytes: int) -> tuple[Array, bool]:
        """Allocate uint8 [nbytes]; also returns whether a new segment must be announced.

        Raises:
            OSError: the memory cannot be reserved.
        """
        wanted = _rounded(nbytes)
        room = self._take(wanted, nbytes)
        if room is not None:
            return room, False
        size = max(wanted, _SEGMENT_BYTES)
        descriptor = reserve(size, sealed=True)
        self._descriptors.append(descriptor)
        self._sizes.append(size)
        self._segments.append(_Segment(map_memory(descriptor, size)))
        self._free.append((len(self._segments) - 1, 0, size))
        room = self._take(wanted, nbytes)
        assert room is not None
        return room, True

    def _take(self, wanted: int, nbytes: int) -> Array | None:
        for index, (number, offset, size) in enumerate(self._free):
            if size >= wanted:
                self._free[index : index + 1] = (
                    [(number, offset + wanted, size - wanted)] if size > wanted else []
                )
                return self._segments[number].whole[offset : offset + nbytes]
        return None

    def give_back(self, room: Array) -> None:
        """Free memory that `take` allocated."""
        number = next(number for number, segment in enumerate(self._segments) if segment.holds(room))
        begin = room.ctypes.data - self._segments[number].address
        merged: list[tuple[int, int, int]] = []
        for segment, offset, size in sorted([*self._free, (number, begin, _rounded(room.nbytes))]):
            if merged and merged[-1][0] == segment and merged[-1][1] + merged[-1][2] == offset:
                merged[-1] = segment, merged[-1][1], merged[-1][2] + size
            else:
                merged.append((segment, offset, size))
        self._free = merged

    def close(self) -> None:
        """Close the segments' descriptors; existing mappings stay valid."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


class PeerArena(_Arena):
    """The server's side of a worker's arena."""

    def __init__(self) -> None:
        super().__init__()
        self._described: list[Any] = []

    @property
    def processes(self) -> set[int]:
        """Pids of the processes that own the memory."""
        return {pid for pid, *_ in self._described}

    def follow(self, described: Any) -> None:
        """Map newly announced segments.

        Args:
            described: the value of `OwnArena.described`.

        Raises:
            WireError: a segment does not exist or must not be opened.
        """
        if not isinstance(described, list) or described[: len(self._described)] != self._described:
            raise WireError("arena", "shared memory must be a list of segments that only grows [R429]")
        for each in described[len(self._described) :]:
            match each:
                case [int(pid), int(descriptor), int(inode), int(nbytes)] if nbytes > 0:
                    pass
                case _:
                    raise WireError("arena", "a segment must be a process, descriptor, inode and size [R429]")
            try:
                self._segments.append(_Segment(_map_sealed(pid, descriptor, inode, nbytes)))
            except (OSError, ValueError, OverflowError) as error:
                raise WireError(
                    "arena", f"memory of process {pid} cannot be shared: {error} [R429]"
                ) from None
            self._described.append(each)

    def room(self, place: Any, nbytes: int) -> Array:
        """Return the memory for an answer; uint8 [nbytes].

        Raises:
            WireError: the place is not in the arena.
        """
        if type(place) is not int:
            raise WireError("arena", "the place of an answer must be a whole number [R429]")
        return np.frombuffer(self.view(place, nbytes), np.uint8)


def _map_sealed(pid: int, descriptor: int, inode: int, nbytes: int) -> mmap.mmap:
    """Map memory of another process that is sealed against shrinking.

    Raises:
        OSError: the descriptor is not such memory; no other file or device is opened.
        ValueError: the memory is smaller than announced.
    """
    if not os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("/memfd:ronde"):
        raise OSError("it is not shared memory of ronde [R430]")
    opened = open_of_peer(pid, descriptor, inode)
    try:
        if not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("it may become smaller")
        return map_memory(opened, nbytes)
    finally:
        os.close(opened)


def _rounded(nbytes: int) -> int:
    return max(-(-nbytes // _ALIGNMENT), 1) * _ALIGNMENT

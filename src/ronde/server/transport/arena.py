"""Memory of a worker that servers of the same host see too: large arrays lie there instead of travelling.

The worker allocates it and says where it is; a server opens it through `/proc/PID/fd`, so nothing is left
behind however either ends.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from ronde.comm.shared_segment import map_memory, map_of_peer, reserve
from ronde.server.transport.wire import WireError

__all__ = ["OwnArena", "PeerArena"]

Array = np.ndarray[Any, Any]

_ALIGNMENT = 4096


class OwnArena:
    """The worker's side.

    Args:
        nbytes: how much there is; it takes memory where it has been written to.

    Raises:
        OSError: there is not so much memory.
    """

    def __init__(self, nbytes: int) -> None:
        self._descriptor = reserve(nbytes)
        self._memory: mmap.mmap = map_memory(self._descriptor, nbytes)
        self._whole = np.frombuffer(self._memory, np.uint8)
        self._address = self._whole.ctypes.data
        # Free stretches, by where they begin: offset and size.
        self._free: list[tuple[int, int]] = [(0, nbytes)]

    @property
    def described(self) -> list[int]:
        """Process, descriptor, inode and size: where a server finds it."""
        status = os.fstat(self._descriptor)
        return [os.getpid(), self._descriptor, status.st_ino, len(self._whole)]

    def take(self, nbytes: int) -> Array | None:
        """Room of so many bytes (uint8 [nbytes]); None where there is no stretch that large."""
        wanted = max(-(-nbytes // _ALIGNMENT), 1) * _ALIGNMENT
        for place, (offset, size) in enumerate(self._free):
            if size >= wanted:
                rest = [(offset + wanted, size - wanted)] if size > wanted else []
                self._free[place : place + 1] = rest
                return self._whole[offset : offset + nbytes]
        return None

    def give_back(self, room: Array) -> None:
        """Free what `take` gave."""
        offset = room.ctypes.data - self._address
        size = max(-(-room.nbytes // _ALIGNMENT), 1) * _ALIGNMENT
        merged: list[tuple[int, int]] = []
        for begin, length in sorted([*self._free, (offset, size)]):
            if merged and sum(merged[-1]) == begin:
                merged[-1] = merged[-1][0], merged[-1][1] + length
            else:
                merged.append((begin, length))
        self._free = merged

    def place(self, array: Array) -> int | None:
        offset = array.ctypes.data - self._address
        inside = 0 <= offset and offset + array.nbytes <= len(self._whole)
        return offset if inside and array.flags.c_contiguous and array.nbytes else None

    def view(self, offset: int, nbytes: int) -> memoryview:
        return _view(self._memory, offset, nbytes)

    def close(self) -> None:
        """Let go of the memory; what still looks at it keeps it."""
        os.close(self._descriptor)


class PeerArena:
    """The server's side of a worker's arena.

    Args:
        described: as `OwnArena.described` says.

    Raises:
        WireError: there is no such memory, or it is not to be opened.
    """

    def __init__(self, described: Any) -> None:
        match described:
            case [int(pid), int(descriptor), int(inode), int(nbytes)] if nbytes > 0:
                pass
            case _:
                raise WireError("arena", "shared memory is described by process, descriptor, inode and size")
        try:
            self._memory = map_of_peer(pid, descriptor, inode, nbytes)
        except (OSError, ValueError) as error:
            raise WireError("arena", f"memory of process {pid} cannot be shared: {error}") from None
        self._whole = np.frombuffer(self._memory, np.uint8)
        self._address = self._whole.ctypes.data

    def place(self, array: Array) -> int | None:
        offset = array.ctypes.data - self._address
        inside = 0 <= offset and offset + array.nbytes <= len(self._whole)
        return offset if inside and array.flags.c_contiguous and array.nbytes else None

    def view(self, offset: int, nbytes: int) -> memoryview:
        return _view(self._memory, offset, nbytes)

    def room(self, offset: Any, nbytes: int) -> Array:
        """Where an answer is to be written (uint8 [nbytes]).

        Raises:
            WireError: it does not lie in the arena.
        """
        if type(offset) is not int:
            raise WireError("arena", "the place of an answer is a number of bytes")
        return np.frombuffer(self.view(offset, nbytes), np.uint8)


def _view(memory: mmap.mmap, offset: int, nbytes: int) -> memoryview:
    if offset < 0 or nbytes < 0 or offset + nbytes > len(memory):
        raise WireError("arena", f"{nbytes} bytes from {offset} do not lie in shared memory of {len(memory)}")
    return memoryview(memory)[offset : offset + nbytes]

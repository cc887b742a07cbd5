"""Wakes sleeping ranks of a host when another rank has made progress.

Each rank has a bell in memory that all share, a futex (Franke, Russell, Kirkwood, "Fuss, Futexes and
Furwocks", 2002): a rank that goes to sleep sets a flag, and a rank that has counted up wakes the flagged
ones. Without sleepers that costs one look at each peer.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Bell"]

_SYS_FUTEX = 202  # x86-64
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_ALL = 2**31 - 1
# Indices of words, in cache lines of their own.
_ASLEEP, _STROKES = 0, 8


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@functools.cache
def _syscall() -> Any:
    """Return `syscall` of one shared library object.

    A library that is opened again is freed only by the garbage collector.
    """
    return ctypes.CDLL(None).syscall


class Bell:
    """The bells of all ranks of a host, as one of them uses them.

    Args:
        rank: the number of this rank on this host.
        maps: memory of each rank, shared by all; zero at first.
        begin: offset of the bell's `NBYTES` bytes in each map.
    """

    NBYTES = 128

    def __init__(self, rank: int, maps: Sequence[mmap.mmap], begin: int) -> None:
        words = [memoryview(each)[begin : begin + self.NBYTES].cast("Q") for each in maps]
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(each, begin + _STROKES * 8)) for each in maps]
        self._own, self._address = words[rank], addresses[rank]
        self._peers = [
            (each, address)
            for place, (each, address) in enumerate(zip(words, addresses, strict=True))
            if place != rank
        ]

    def ring(self) -> None:
        """Wake the peers that sleep; each then looks for the change itself."""
        for words, address in self._peers:
            if words[_ASLEEP]:
                words[_STROKES] += 1
                self._call(address, _FUTEX_WAKE, _ALL, None)

    def sleep(self, come: Callable[[], bool], milliseconds: int) -> None:
        """Sleep until a peer has rung since `come()` was false, or time is up.

        A stroke may be missed, where a peer counts up just as this rank sets its flag: the time should be
        short.
        """
        strokes = self._own[_STROKES]
        self._own[_ASLEEP] = 1
        try:
            if not come():
                limit = _Time(milliseconds // 1000, milliseconds % 1000 * 1_000_000)
                self._call(self._address, _FUTEX_WAIT, strokes & 0xFFFFFFFF, ctypes.byref(limit))
        finally:
            self._own[_ASLEEP] = 0

    def _call(self, address: int, operation: int, value: int, limit: object) -> None:
        _syscall()(
            ctypes.c_long(_SYS_FUTEX),
            ctypes.c_void_p(address),
            ctypes.c_int(operation),
            ctypes.c_uint32(value),
            limit,
            None,
            ctypes.c_uint32(0),
        )

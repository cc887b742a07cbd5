"""Memory of large frames, used again.

A fresh mapping of 100 MB costs more than the encryption of as many bytes, as the kernel has to zero it.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np

from ronde.server.array_codec import Array

__all__ = ["BufferPool"]

_LEAST_BYTES = 1 << 20
_KEPT_BYTES = 256 << 20


class BufferPool:
    """Memory for arrays, used again when it has no views any more.

    Threads may share a pool.

    Args:
        kept: bytes of unused memory that the pool keeps at most.
    """

    def __init__(self, kept: int = _KEPT_BYTES) -> None:
        self._lock = threading.RLock()  # memory may come back inside of `take`, by the garbage collector
        self._left = kept
        self._free: dict[int, list[Array]] = {}

    def take(self, nbytes: int) -> Array:
        """Return uninitialized memory; uint8 [nbytes]."""
        if nbytes < _LEAST_BYTES:
            return np.empty(nbytes, np.uint8)
        size = 1 << (nbytes - 1).bit_length()  # pages behind `nbytes` are never touched
        with self._lock:
            free = self._free.get(size)
            memory = free.pop() if free else None
            if memory is not None:
                self._left += size
        if memory is None:
            memory = np.empty(size, np.uint8)
        # NumPy makes an array over a memoryview, and no array below it, the base of further views.
        view = np.frombuffer(memory.data, np.uint8, nbytes)
        weakref.finalize(view, self._give_back, memory).atexit = False
        return view

    def _give_back(self, memory: Array) -> None:
        with self._lock:
            if memory.nbytes <= self._left:
                self._left -= memory.nbytes
                self._free.setdefault(memory.nbytes, []).append(memory)

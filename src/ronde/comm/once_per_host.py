"""Memory that exists once on a host, for all of its ranks together.

Each rank maps one anonymous file twice. All ranks read its writes to its part of `common`. Its writes to
`private` stay its own: the kernel copies a page before the first write to it (copy on write). So all ranks
can read everything, and each keeps one part up to date.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ronde.comm.shared_segment import open_of_peer

__all__ = ["OncePerHost", "share_once"]

_FAILED = ctypes.c_void_p(-1).value
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class OncePerHost:
    """The two mappings of this rank.

    Attributes:
        common: the memory that all ranks see.
        private: the same memory, covered by this rank's own writes.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.common = _mapped(descriptor, nbytes, mmap.MAP_SHARED)
        self.private = _mapped(descriptor, nbytes, mmap.MAP_PRIVATE | _NORESERVE)

    def forget_writes(self) -> None:
        """Drop this rank's writes, so that `private` reads as `common` again."""
        address, nbytes = ctypes.addressof(self.private), ctypes.sizeof(self.private)
        _checked(_libc().madvise(address, nbytes, mmap.MADV_DONTNEED))


def _mapped(descriptor: int, nbytes: int, flags: int) -> ctypes.Array[Any]:
    """Return a buffer that is unmapped with its last reference.

    Python's `mmap` keeps a file descriptor for each mapping. A process may have about a thousand descriptors,
    and a model has hundreds of mappings.
    """
    libc = _libc()
    address = libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    if address == _FAILED:
        _checked(-1)
    buffer = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(buffer, libc.munmap, address, nbytes).atexit = False
    return buffer


@functools.cache
def _libc() -> Any:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = [pointer, size, number]
    return libc


def _checked(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def share_once(
    nbytes: int,
    own: Sequence[tuple[int, int]],
    rank: int,
    exchange: Callable[[tuple[int, int, int]], Sequence[tuple[int, int, int]]],
) -> OncePerHost | None:
    """Map zeroed memory of `nbytes` once for all ranks of a host (collective).

    Args:
        own: first and last byte of each range that this rank keeps up to date; their memory is allocated by
            it.
        rank: the number of this rank on this host.
        exchange: function that gathers three integers from every rank of this host, in order; called twice.

    Returns:
        None, on all ranks, where one of them cannot.
    """
    memory, descriptor, failure = None, -1, 0
    try:
        if rank == 0:
            descriptor = os.memfd_create("ronde")
            os.ftruncate(descriptor, nbytes)
        inode = os.fstat(descriptor).st_ino if rank == 0 else 0
    except OSError:
        inode = 0
    pid, number, inode = exchange((os.getpid(), descriptor, inode))[0]
    try:
        if not inode:
            raise OSError(errno.ENOMEM, "no memory to share")
        if rank != 0:
            descriptor = open_of_peer(pid, number, inode)
        for begin, end in own:
            os.posix_fallocate(descriptor, begin, end - begin)
        memory = OncePerHost(descriptor, nbytes)
    except (OSError, ValueError):
        failure = 1
    failures = exchange((failure, 0, 0))
    if descriptor >= 0:
        os.close(descriptor)  # the mappings keep the memory
    return None if any(code for code, _, _ in failures) else memory

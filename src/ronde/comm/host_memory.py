"""Memory that exists once on a host, for all of its ranks together.

Each rank maps one anonymous file twice. What it writes to its part of `common` all ranks read. What it
writes to `private` stays its own: the kernel copies a page before the first write to it (copy on write). So
all ranks have all of it to read, and one part each to keep up to date.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence

from ronde.comm.shared_segment import open_of_peer

__all__ = ["HostMemory", "share_once"]

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class HostMemory:
    """This rank's two mappings.

    Attributes:
        common: what all ranks see.
        private: the same memory, and what this rank alone has written over it.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.common = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
        flags = mmap.MAP_PRIVATE | _NORESERVE
        self.private = mmap.mmap(descriptor, nbytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def forget_writes(self) -> None:
        """Have `private` read as `common` again."""
        self.private.madvise(mmap.MADV_DONTNEED)


def share_once(
    nbytes: int,
    own: Sequence[tuple[int, int]],
    rank: int,
    exchange: Callable[[tuple[int, int, int]], Sequence[tuple[int, int, int]]],
) -> HostMemory | None:
    """Map memory of `nbytes`, which is nought; called by all ranks of a host alike.

    Args:
        own: first and last byte of what this rank keeps up to date: it is charged to this rank, and there.
        rank: this rank, counted on this host.
        exchange: gathers three integers from every rank of this host, in order; called twice.

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
        memory = HostMemory(descriptor, nbytes)
    except (OSError, ValueError):
        failure = 1
    failures = exchange((failure, 0, 0))
    if descriptor >= 0:
        os.close(descriptor)  # the mappings keep the memory
    return None if any(code for code, _, _ in failures) else memory

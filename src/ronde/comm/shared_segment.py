"""Memory that the ranks of a host share, without a file system name.

Each rank allocates its own part as an anonymous file (`memfd_create`), which the others open through
`/proc/PID/fd`. Nothing can be left over, however a rank ends; the size of /dev/shm, 64 MB in a container by
default, sets no limit; and on machines with several memory nodes each part lies near its rank.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence

from ronde.errors import LaunchError

__all__ = ["map_memory", "map_of_peer", "open_of_peer", "reserve", "share"]

_FALLOCATE_STEP = 1 << 30


def share(
    nbytes: int, rank: int, exchange: Callable[[tuple[int, int, int]], Sequence[tuple[int, int, int]]]
) -> tuple[list[mmap.mmap], list[int]]:
    """Allocate `nbytes` of zeroed memory per rank, and map all ranks' parts.

    Args:
        nbytes: size of one rank's part, the same on all ranks.
        rank: the number of this rank on this host.
        exchange: function that gathers three integers from every rank of this host, in order. Called twice:
            the second time when a rank has mapped everything, with an error number.

    Returns:
        the memory of each rank, and the process number of each.

    Raises:
        LaunchError: the memory does not suffice, or one rank may not open another's part; raised on all.
    """
    descriptor, failure = -1, 0
    try:
        descriptor = reserve(nbytes)
    except OSError as error:
        failure = error.errno or errno.EIO
    inode = os.fstat(descriptor).st_ino if not failure else -failure
    parts: list[mmap.mmap] = []
    places = exchange((os.getpid(), descriptor, inode))
    failure = next((-inode for _, _, inode in places if inode < 0), 0)
    if not failure:
        try:
            parts = [
                map_memory(descriptor, nbytes) if each == rank else map_of_peer(*place, nbytes)
                for each, place in enumerate(places)
            ]
        except OSError as error:
            failure = error.errno or errno.EIO
    failures = [code for code, _, _ in exchange((failure, 0, 0)) if code]
    if descriptor >= 0:
        os.close(descriptor)  # the mappings keep the memory
    if failures:
        raise LaunchError(
            f"ranks could not share {nbytes / 2**20:.1f} MiB of memory each: "
            f"{os.strerror(failures[0])} [R321]"
        )
    return parts, [pid for pid, _, _ in places]


def reserve(nbytes: int, *, sealed: bool = False) -> int:
    """Allocate anonymous memory, so that later writes cannot fail; return its descriptor.

    Args:
        sealed: whether to forbid making it smaller, which would kill another process that reads it.

    Raises:
        OSError: the memory does not suffice.
    """
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealed else 0)
    descriptor = os.memfd_create("ronde", flags)
    try:
        for start in range(0, nbytes, _FALLOCATE_STEP):
            os.posix_fallocate(descriptor, start, min(_FALLOCATE_STEP, nbytes - start))
        if sealed:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def map_memory(descriptor: int, nbytes: int, *, present: bool = True) -> mmap.mmap:
    """Map memory by its descriptor.

    Args:
        present: whether all pages are present at once, so that none costs the time of a fault. A rank
            touches only a part of many peers' memory: page tables of present pages would grow with the square
            of ranks.
    """
    return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | (mmap.MAP_POPULATE if present else 0))


def map_of_peer(pid: int, descriptor: int, inode: int, nbytes: int) -> mmap.mmap:
    """Map memory of another process, which keeps it open under `descriptor`.

    Raises:
        OSError: the memory is gone, or this user may not open it.
    """
    opened = open_of_peer(pid, descriptor, inode)
    try:
        return map_memory(opened, nbytes, present=False)
    finally:
        os.close(opened)


def open_of_peer(pid: int, descriptor: int, inode: int) -> int:
    """Open memory of another process; return a descriptor. Errors are those of `map_of_peer`."""
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    # The number may belong to another process, where ranks live in containers of their own.
    if os.fstat(opened).st_ino != inode:
        os.close(opened)
        raise OSError(errno.ESRCH, "another process")
    return opened

"""Calls to the Linux kernel by which no rank outlives its launcher.

A child that asks for it is killed when its parent dies. A process that is a "subreaper" inherits the orphans
among its descendants: loader workers of a rank that was killed become its own children, so that it can end
all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "become_subreaper",
    "bind_to_parent",
    "is_alive",
    "is_subreaper",
    "load_prctl",
    "subreaping",
]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
# A kernel flag of an ending process: its memory, and so its environment, may be gone before it is a zombie.
_PF_EXITING = 0x4


def load_prctl() -> ctypes.CDLL:
    """Load the C library; before a fork, for a child may do little."""
    return ctypes.CDLL(None, use_errno=True)


def bind_to_parent(library: ctypes.CDLL, parent: int, number: int = signal.SIGKILL) -> None:
    """Ask, in a child, for this signal when `parent` dies.

    If the parent is gone already, the child ends at once.
    """
    library.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def is_subreaper(library: ctypes.CDLL) -> bool:
    value = ctypes.c_int(0)
    library.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return bool(value.value)


def become_subreaper(library: ctypes.CDLL, wanted: bool) -> None:
    library.prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is not about to end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0] not in (b"Z", b"X") and not int(fields[6]) & _PF_EXITING
    except (OSError, IndexError):
        return False


@contextlib.contextmanager
def subreaping(library: ctypes.CDLL) -> Iterator[None]:
    """Make this process, as a context, the parent of orphans among its descendants."""
    before = is_subreaper(library)
    become_subreaper(library, True)
    try:
        yield
    finally:
        become_subreaper(library, before)

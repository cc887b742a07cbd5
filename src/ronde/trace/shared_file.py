"""A file of the run directory as memory that the ranks of a host, and their launcher, share."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

__all__ = ["shared_file"]


def shared_file(path: Path, size: int, *, make: bool) -> mmap.mmap:
    """The file as memory; its blocks are reserved, as a write into a hole of a full disk is a bus error."""
    # os.open is never mediated.
    handle = os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o666)
    try:
        if make:
            os.posix_fallocate(handle, 0, size)
        elif os.fstat(handle).st_size < size:
            raise OSError(f"{path} is not complete")
        return mmap.mmap(handle, size)
    finally:
        os.close(handle)

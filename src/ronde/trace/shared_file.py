"""A file of the run directory as shared memory of ranks and launcher."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

__all__ = ["shared_file"]


def shared_file(path: Path, size: int, *, make: bool) -> mmap.mmap:
    """Map a file into memory, with its blocks reserved.

    A write into a hole of a file on a full disk is a bus error.
    """
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

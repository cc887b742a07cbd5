"""Writes all bytes to a descriptor that may accept them in pieces."""

from __future__ import annotations

import os
import select

__all__ = ["write_all"]


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another program made the user's terminal non-blocking
            select.select([], [descriptor], [])

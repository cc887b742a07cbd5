"""Raw files with a close callback, real or without content."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

__all__ = ["NullFile", "RawFile", "Sink", "layered"]


class Sink(io.RawIOBase):
    """A sink that drops all bytes, for serializers that need a target."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return memoryview(data).nbytes


class RawFile(io.FileIO):
    """The raw file under the layers of `open`, with a callback after its close."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        was_open = not self.closed
        try:
            super().close()
        finally:
            if was_open and self.on_close is not None:
                self.on_close()


class NullFile(RawFile):
    """A file that keeps position and size of its writes, but no bytes."""

    def write(self, data: Any, /) -> int:
        count = memoryview(data).nbytes
        end = self.seek(0, os.SEEK_END if "a" in self.mode else os.SEEK_CUR)
        if count:
            end = self.seek(end + count)
            if end > os.fstat(self.fileno()).st_size:
                self.truncate(end)
        return count


def layered(
    raw: RawFile, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> Any:
    """Add buffer and text layer to `raw`, as `open` does.

    The arguments are those of `open`, already checked.
    """
    if buffering == 0:
        return raw
    kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
    buffer = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # pyright: ignore[reportAttributeAccessIssue]
    return text

"""Raw files that tell of their end: real ones, and ones that keep position and size, and no bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

__all__ = ["NullFile", "RawFile", "Sink", "layered"]


class Sink(io.RawIOBase):
    """Takes any bytes and forgets them: for serializers that only want something to write to."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return memoryview(data).nbytes


class RawFile(io.FileIO):
    """What `open` puts its layers on; `on_close` is called when it has been closed."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        was_open = not self.closed
        try:
            super().close()
        finally:
            if was_open and self.on_close is not None:
                self.on_close()


class NullFile(RawFile):
    """Keeps position and size of what is written, and none of the bytes."""

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
    """Put buffer and text layer on `raw` as `open` does; the arguments are `open`'s and already checked."""
    if buffering == 0:
        return raw
    kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
    buffer = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # pyright: ignore[reportAttributeAccessIssue]
    return text

"""Open files that tell when they were flushed or closed.

Both sides of a mediated file are built here, over a real raw file on the main rank and over a
shadow elsewhere, so that the same calls of the script are counted alike on every rank.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

__all__ = ["Announce", "assemble"]

Announce = Callable[[bool], None]
"""Called with true when the file was closed, with false when it was flushed."""


class _Announcing:
    """Mixed into a buffer class of `io`; `announce` is set once the object is built."""

    announce: Announce | None = None

    def flush(self) -> None:
        super().flush()  # pyright: ignore[reportAttributeAccessIssue]
        if self.announce is not None:
            self.announce(False)

    def close(self) -> None:
        was_open = not self.closed  # pyright: ignore[reportAttributeAccessIssue]
        try:
            super().close()  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            if was_open and self.announce is not None:
                self.announce(True)


class _Writer(_Announcing, io.BufferedWriter):
    """A write-only file."""


class _Random(_Announcing, io.BufferedRandom):
    """A file open for reading and writing."""


class _Unbuffered(io.RawIOBase):
    """A file without a buffer: every write is there at once, so every write is a flush."""

    def __init__(self, raw: Any, announce: Announce) -> None:
        super().__init__()
        self._raw = raw
        self._announce = announce

    def write(self, data: Any, /) -> int | None:
        count = self._raw.write(data)
        self._announce(False)
        return count

    def readinto(self, buffer: Any, /) -> int | None:
        return self._raw.readinto(buffer)

    def readall(self) -> Any:
        return self._raw.readall()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def truncate(self, size: int | None = None, /) -> int:
        return self._raw.truncate(size)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
                self._raw.close()
            finally:
                self._announce(True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def readable(self) -> bool:
        return self._raw.readable()

    def writable(self) -> bool:
        return self._raw.writable()

    def seekable(self) -> bool:
        return self._raw.seekable()

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()


def assemble(
    raw: Any,
    *,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    announce: Announce,
) -> Any:
    """Put buffer and text layer on `raw` as `open` does; the arguments are `open`'s and already checked."""
    if buffering == 0:
        return _Unbuffered(raw, announce)
    binary = "b" in mode
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffer = (_Random if "+" in mode else _Writer)(raw, size)
    buffer.announce = announce
    if binary:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # pyright: ignore[reportAttributeAccessIssue]
    return text

"""A file that goes on as it was when it was opened, though a thread of the main rank writes to it."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from typing import Any

__all__ = ["SteadyFile", "open_steadily"]


class SteadyFile(io.FileIO):
    """Looks, after each reading, whether the file was changed before it, and if so reads where it is kept.

    Args:
        name: the script's for it.
        opener: opens it.
        kept: where it is kept as it was; None while it is as it was.
    """

    def __init__(
        self, name: Any, opener: Callable[[Any, int], int] | None, kept: Callable[[], str | None]
    ) -> None:
        super().__init__(name, "r", opener=opener)
        is_file = stat.S_ISREG(os.fstat(self.fileno()).st_mode)
        self._kept: Callable[[], str | None] | None = kept if is_file else None

    def readinto(self, buffer: Any, /) -> Any:
        return self._steady(lambda: super(SteadyFile, self).readinto(buffer))

    def readall(self) -> bytes:
        return self._steady(super().readall)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._steady(lambda: super(SteadyFile, self).read(-1 if size is None else size))

    def _steady(self, read: Callable[[], Any]) -> Any:
        if self._kept is None:
            return read()
        start = self.tell()
        answer = read()
        place = self._kept()
        if place is None:
            return answer
        self._kept = None
        descriptor = os.open(place, os.O_RDONLY)
        os.dup2(descriptor, self.fileno(), inheritable=False)
        os.close(descriptor)
        self.seek(start)
        return read()


def open_steadily(
    name: Any,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    *,
    opener: Callable[[Any, int], int] | None,
    kept: Callable[[], str | None],
) -> Any:
    """As `open` for reading; the arguments are checked already."""
    raw = SteadyFile(os.fspath(name), opener, kept)
    if buffering == 0:
        return raw
    buffer = io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # pyright: ignore[reportAttributeAccessIssue]
    return text

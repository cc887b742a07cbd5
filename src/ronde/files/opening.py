"""`open` and `os.open` as the script sees them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ronde.files.overlay import called
from ronde.files.rank_files import RankFiles
from ronde.files.raw_files import NullFile, RawFile, layered

__all__ = ["Opening"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FLAGS = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}
"""Flags by the letter of a mode, as in `open`."""
_UNNAMED = getattr(os, "O_TMPFILE", 0)


class Opening:
    """Opens files: for writing, all ranks together; in threads and processes, in the overlay.

    Args:
        plain_open, plain_os_open: the functions of the interpreter.
    """

    def __init__(
        self, files: RankFiles, plain_open: Callable[..., Any], plain_os_open: Callable[..., int]
    ) -> None:
        self._files = files
        self._open = plain_open
        self._os_open = plain_os_open

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        """Open a file, as a replacement of `open`."""
        layers = (buffering, encoding, errors, newline)
        # An opener of the caller's calls `os.open`.
        if isinstance(file, int) or not isinstance(mode, str) or opener is not None:
            return self._open(file, mode, *layers, closefd, opener)
        if set(mode).isdisjoint("wax+"):
            self._files.note_read(file)
            with self._files.reading(file) as place:
                return self._open_at(place, file, mode, *layers, closefd)
        located = self._files.mediated(file)
        if located is None:
            place = self._files.place_to_write(file, keep="w" not in mode, follow="x" not in mode)
            with called({place: file}):
                return self._open_at(place, file, mode, *layers, closefd)
        # Invalid arguments raise here, on every rank, with the message of `open`.
        self._open(os.devnull, mode.replace("x", "w"), *layers, closefd).close()
        letters = "".join(letter for letter in mode if letter in "rwax+")
        flags = _FLAGS[letters.replace("+", "")] | (os.O_RDWR if "+" in mode else os.O_WRONLY) | os.O_CLOEXEC
        opened, key = self._together(f"open ({letters})", file, located, flags, 0o666, named=False)
        raw = (RawFile if self._files.writes() or "+" in mode else NullFile)(opened, letters)
        raw.name = os.fspath(file)  # pyright: ignore[reportAttributeAccessIssue]
        if self._files.history is not None and not self._files.writes():
            self._files.history.stands_for(raw, key)
        self._files.opened(key)
        raw.on_close = lambda: self._files.closed(key)
        return layered(raw, mode, *layers)

    def _open_at(self, place: Any, file: Any, *rest: Any) -> Any:
        """Open `place`, but name the file as the script does."""
        opened = self._open(place, *rest)
        if place is not file:
            raw = getattr(opened, "buffer", opened)
            getattr(raw, "raw", raw).name = file
        return opened

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file, as a replacement of `os.open`."""
        if dir_fd is not None or (_UNNAMED and flags & _UNNAMED == _UNNAMED):
            return self._os_open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITING:
            self._files.note_read(path)
            with self._files.reading(path) as place:
                return self._os_open(place, flags, mode)
        located = self._files.mediated(path)
        if located is not None:
            opened, key = self._together("os.open", path, located, flags, mode)
            # Its close is not seen, so a reader waits until rank 0 has reached the same point.
            self._files.opened(key, closes=False)
            return opened
        anew = bool(flags & os.O_EXCL)
        place = self._files.place_to_write(path, keep=not flags & os.O_TRUNC, follow=not anew)
        with called({place: path}):
            return self._os_open(place, flags, mode)

    def _together(
        self, operation: str, path: Any, located: str, flags: int, mode: int, *, named: bool = True
    ) -> tuple[int, str]:
        """Open a file on rank 0, and a scratch file on others.

        Returns the descriptor, and the file's real path on rank 0.

        Args:
            named: whether the scratch file keeps its name: file locks take a nameless one for a removed lock.
        """
        opened: list[int] = []
        places: list[str] = []

        def act() -> tuple[str, int]:
            opened.append(self._os_open(path, flags, mode))
            return os.path.realpath(located), os.fstat(opened[0]).st_size

        def copy() -> None:
            places.append(self._files.overlay.scratch(located))

        reads = bool(flags & os.O_RDWR) and not flags & os.O_TRUNC
        key, size = self._files.once(operation, located, act, prepare=copy if reads else None)
        if not opened:
            with self._files.callers.unmediated():
                place = places[0] if places else self._files.overlay.scratch(size=size)
                opened.append(self._os_open(place, flags & (os.O_ACCMODE | os.O_APPEND | os.O_CLOEXEC)))
                if not named:
                    os.unlink(place)
        return opened[0], key

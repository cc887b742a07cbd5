"""`open` and `os.open` as the script sees them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from ronde.boundary.files.announcing import assemble
from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.naming import called
from ronde.boundary.files.null_file import NullFile
from ronde.boundary.files.private_copy import Mirrors, open_copy
from ronde.boundary.files.steady_file import open_steadily

__all__ = ["Opening"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", 0)


class Opening:
    """Opening for reading waits for what was written; opening for writing is a meeting.

    Args:
        original_open, original_os_open, original_os_close: the functions that these replace.
    """

    def __init__(
        self,
        mediation: Mediation,
        mirrors: Mirrors,
        *,
        original_open: Callable[..., Any],
        original_os_open: Callable[..., int],
        original_os_close: Callable[[int], None],
    ) -> None:
        self._mediation = mediation
        self._mirrors = mirrors
        self._open = original_open
        self._os_open = original_os_open
        self._os_close = original_os_close
        self._descriptors: dict[int, tuple[tuple[int, int], str]] = {}

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
        """Stands in for `open`."""
        mediation = self._mediation
        rest = (mode, buffering, encoding, errors, newline, closefd, opener)
        if not mediation.governs():
            return self._open_elsewhere(file, *rest)
        if isinstance(file, int) and not isinstance(file, bool):
            return self._open_descriptor(file, *rest)
        located = mediation.paths.locate(file)
        if located is None or not isinstance(mode, str):
            return self._open(file, *rest)
        if not set(mode) & set("wax+"):
            mediation.before_reading(located)
            return self._open_elsewhere(mediation.paths.renamed(file), *rest)
        if mediation.paths.is_exempt(located):
            return self._open(file, *rest)
        # Arguments that are wrong in themselves raise here, on every rank, as `open` words it.
        self._open(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline, closefd).close()
        name = os.fspath(mediation.paths.renamed(file))
        raw, key = self._raw(name, located, "".join(c for c in mode if c in "rwax+"), opener)
        return assemble(
            raw,
            mode=mode,
            buffering=buffering,
            encoding=encoding,
            errors=errors,
            newline=newline,
            announce=mediation.announcer(key, mode),
        )

    def _open_elsewhere(self, file: Any, mode: Any, *rest: Any) -> Any:
        """`open` where no meeting is due: the file itself, or what threads of this rank have made of it."""
        flags = set(mode) if isinstance(mode, str) else set()
        if isinstance(file, int) or rest[-1] is not None:
            return self._open(file, mode, *rest)
        if not flags & set("wax+"):
            opened = self._open_steadily if self._mediation.looks_aside() else self._open_at
            return self._mediation.reading(
                file,
                lambda place: opened(place, file, mode, *rest),
                undo=lambda opened: opened.close(),
            )
        place = self._mediation.place_to_write(file, keep=not flags & set("wx"), anew="x" in flags)
        if place is None:
            return self._open(file, mode, *rest)
        with called({place: file}):
            return self._open_at(place, file, mode, *rest)

    def _open_at(self, place: Any, file: Any, mode: Any, *rest: Any) -> Any:
        if place is file:
            return self._open(file, mode, *rest)
        # By an opener the file keeps the name that the script gave.
        with self._mediation.elsewhere():
            return self._open(file, mode, *rest[:-1], lambda _, flags: self._os_open(place, flags, 0o666))

    def _open_steadily(self, place: Any, file: Any, mode: str, *rest: Any) -> Any:
        """What is read later is as of now, too."""
        buffering, encoding, errors, newline, closefd, _ = rest
        kept = self._mediation.kept(place)
        if kept is None:
            return self._open_at(place, file, mode, *rest)
        self._open(os.devnull, mode, buffering, encoding, errors, newline, closefd).close()
        opener = None if place is file else lambda _, flags: self._os_open(place, flags)
        return open_steadily(file, mode, buffering, encoding, errors, newline, opener=opener, kept=kept)

    def _raw(
        self, name: str | bytes, located: str, mode: str, opener: Callable[[str, int], int] | None
    ) -> tuple[Any, str]:
        """The raw file of this rank, and the key by which all ranks know the file."""
        updates = "+" in mode
        copies: list[io.FileIO] = []
        above = self._mirrors.temporary.above
        opened: list[io.FileIO] = []

        def act() -> tuple[str, int]:
            opened.append(io.FileIO(name, mode, opener=opener))  # pyright: ignore[reportArgumentType]
            return os.path.realpath(located), os.fstat(opened[0].fileno()).st_size

        def copy() -> None:
            source = located if os.path.exists(located) else None
            copies.append(open_copy(source, mode, name, above))

        outcome = self._mediation.meet(
            f"open ({mode})", located, act, prepare=copy if updates and mode[0] in "ra" else None
        )
        key, size = outcome.value
        self._mediation.met_over(located)
        if opened:
            return opened[0], key
        if not updates:
            return NullFile(name, mode, size), key
        with self._mediation.unmediated():
            return copies[0] if copies else open_copy(None, mode, name, above), key

    def _open_descriptor(self, descriptor: int, mode: str, *rest: Any) -> Any:
        """`open(fd)`, as `os.fdopen` calls it: announce for a descriptor that came from `os_open`."""
        buffering, encoding, errors, newline, closefd, opener = rest
        known = self._known(descriptor)
        if known is None or not isinstance(mode, str) or not set(mode) & set("wax+"):
            return self._open(descriptor, mode, *rest)
        self._open(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline).close()
        raw = io.FileIO(descriptor, "".join(c for c in mode if c in "rwax+"), closefd=closefd, opener=opener)
        if closefd:
            del self._descriptors[descriptor]
        return assemble(
            raw,
            mode=mode,
            buffering=buffering,
            encoding=encoding,
            errors=errors,
            newline=newline,
            announce=self._mediation.announcer(known, mode),
        )

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Stands in for `os.open`."""
        mediation = self._mediation
        if not mediation.governs() or dir_fd is not None:
            return self._descriptor_elsewhere(path, flags, mode, dir_fd)
        located = mediation.paths.locate(path)
        if located is None or (_UNNAMED and flags & _UNNAMED == _UNNAMED):
            return self._os_open(path, flags, mode)
        if not flags & _WRITING:
            mediation.before_reading(located)
            return self._descriptor_elsewhere(mediation.paths.renamed(path), flags, mode, None)
        if mediation.paths.is_exempt(located):
            return self._os_open(path, flags, mode)
        descriptor, key = self._descriptor(mediation.paths.renamed(path), located, flags, mode)
        self._descriptors[descriptor] = (_identity(descriptor), key)
        return descriptor

    def _descriptor_elsewhere(self, path: Any, flags: int, mode: int, dir_fd: int | None) -> int:
        """As `_open_elsewhere`, for `os.open`."""
        if dir_fd is not None or (_UNNAMED and flags & _UNNAMED == _UNNAMED):
            return self._os_open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITING:
            return self._mediation.reading(
                path, lambda place: self._os_open(place, flags, mode), undo=self._os_close
            )
        anew = bool(flags & os.O_EXCL)
        place = self._mediation.place_to_write(path, keep=not (anew or flags & os.O_TRUNC), anew=anew)
        with called({place: path} if place is not None else {}):
            return self._os_open(path if place is None else place, flags, mode)

    def _descriptor(self, path: Any, located: str, flags: int, mode: int) -> tuple[int, str]:
        opened: list[int] = []
        copies: list[bytes] = []
        reads_back = bool(flags & os.O_RDWR) and not flags & os.O_TRUNC

        def act() -> tuple[str, int]:
            opened.append(self._os_open(path, flags, mode))
            return os.path.realpath(located), os.fstat(opened[0]).st_size

        def copy() -> None:
            if os.path.isfile(located):
                with self._open(located, "rb") as file:
                    copies.append(file.read())

        outcome = self._mediation.meet("os.open", located, act, prepare=copy if reads_back else None)
        key, size = outcome.value
        self._mediation.met_over(located)
        if opened:
            return opened[0], key
        with self._mediation.unmediated():
            # A file with a name, because file locks take one without for a lock that was removed.
            place = self._mirrors.place("descriptor")
            with open(place, "wb") as file:
                file.write(copies[0]) if copies else file.truncate(size)
            return self._os_open(place, flags & (os.O_ACCMODE | os.O_APPEND)), key

    def os_close(self, fd: int) -> None:
        """Stands in for `os.close`."""
        key = self._known(fd) if isinstance(fd, int) and self._mediation.governs() else None
        self._os_close(fd)
        if key is not None:
            del self._descriptors[fd]
            # As what grows: whether it does is not known of a descriptor.
            self._mediation.announcer(key, "a")(True)

    def _known(self, descriptor: int) -> str | None:
        """The key of a descriptor from `os_open`, unless its number names another file by now."""
        entry = self._descriptors.get(descriptor)
        if entry is None:
            return None
        try:
            same = _identity(descriptor) == entry[0]
        except OSError:
            same = False
        if not same:
            del self._descriptors[descriptor]
            return None
        return entry[1]


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino

"""An overlay over the real files for each rank other than 0.

Threads and processes of rank 0 change the real files; those of another rank change its overlay. Libraries
that keep a file open and write it by themselves (databases, HDF5) work on a copy of it there. A rank looks
into its own overlay first, and then at the real files, except files that threads of rank 0 have made: these
are hidden until its own threads have made them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ronde.trace.temporary_folder import TemporaryFolders, open_up, remove_tree

__all__ = ["Overlay", "called", "remove"]

_MARK = "\x01"
"""Suffix of the path of each file that rank 0's threads have made."""


class Overlay:
    """One rank's view of the files.

    Its own file operations must run unmediated, which callers ensure. Paths are absolute and `resolve`d. A
    forked process shares the overlay with its rank.

    Args:
        rank: the number of the rank.
        temporary: the maker of this rank's own folder.
        made: function to call with the new folder.
        shared: a folder of all ranks of this host, to be removed when all are gone; None: others do not learn
            of files made by rank 0's threads.

    Attributes:
        unborn: function that tells whether replay has not yet reached the creation of a real file.
    """

    def __init__(
        self, rank: int, temporary: TemporaryFolders, made: Callable[[str], None], shared: str | None
    ) -> None:
        self._is_zero = rank == 0
        self._temporary = temporary
        self._made = made
        self._shared = shared
        self._folder: str | None = None
        self._lock = threading.RLock()  # reentrant, since the finalizer of a collected file may enter it
        self._numbers = itertools.count(1)
        self._gone: set[str] = set()
        self.unborn: Callable[[str], bool] = lambda path: False

    def folder(self) -> str:
        """Return this rank's own folder, made on first use."""
        if self._folder is None:
            with self._lock:
                if self._folder is None:
                    folder = os.path.realpath(self._temporary.new())
                    self._made(folder)
                    self._folder = folder
        return self._folder

    def scratch(self, source: str = "", size: int = 0) -> str:
        """Make a new file outside the tree, with the content of `source`.

        Without a source file it has `size` bytes.
        """
        place = os.path.join(self.folder(), str(next(self._numbers)))
        if os.path.isfile(source):
            shutil.copyfile(source, place)
        else:
            with open(place, "wb") as file:
                file.truncate(size)
        return place

    def place(self, path: str) -> str:
        """Return the path of `path` inside this rank's overlay."""
        return os.path.join(self.folder(), "made") + path

    def resolve(self, located: str, *, last: bool) -> str:
        """Return an absolute path without links, as this rank sees them.

        Args:
            last: whether the last name is resolved too.
        """
        if not self._is_zero:
            tree = self.place("")
            located = _straight(tree + located, last).removeprefix(tree)
            if os.path.lexists(tree + located):
                return located
        return _straight(located, last)

    def find(self, path: str) -> str:
        """Return the actual path of a file for this rank.

        A path that does not exist for it is mapped into its overlay.
        """
        own = self._own(path)
        if own is not None:
            return own
        # Threads of rank 0 leave a mark before they make a file: a file without one existed before.
        return path if os.path.lexists(path) and not self._is_hidden(path) else self.place(path)

    def listed(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        own = self.place(folder)
        if self.find(folder) == own and not os.path.isdir(own):
            return os.listdir(own)  # the plain function raises the error
        names = dict.fromkeys(os.listdir(own) if os.path.isdir(own) else ())
        if os.path.isdir(folder) and not self._is_hidden(folder):
            for name in os.listdir(folder):
                if not self._is_marked(os.path.join(folder, name)):
                    names[name] = None
        return list(names)

    def target(self, path: str, *, keep: bool = False) -> str:
        """Return the path for a write by this rank's thread.

        If its folder is missing, it is missing in the overlay too, so the script gets the same error.

        Args:
            keep: whether to copy its content.
        """
        place = self.place(path)
        if os.path.isdir(self.find(os.path.dirname(path))):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if os.path.isdir(self.find(path)):
                os.makedirs(place, exist_ok=True)
            elif keep:
                self.fetch(path)
        return place

    def fetch(self, path: str) -> str:
        """Copy a path into the overlay if it exists, folders with their content."""
        place, source = self.place(path), self.find(path)
        if os.path.isdir(source) and not os.path.islink(source):
            names = self.listed(path)
            os.makedirs(place, exist_ok=True)
            for name in names:
                self.fetch(os.path.join(path, name))
        elif source != place:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copy2(source, place, follow_symlinks=False)
        return place

    def take(self, path: str) -> None:
        """Remove a path for this rank only; rank 0 removes the real one."""
        remove(self.place(path))
        self._gone.add(path)

    def tell(self, path: str) -> None:
        """Mark a path that a thread of rank 0 is about to make."""
        with contextlib.suppress(OSError):  # without space for the mark, others see the file at once
            if self._shared is not None and not os.path.lexists(path):
                mark = self._mark(path)
                os.makedirs(os.path.dirname(mark), exist_ok=True)
                os.close(os.open(mark, os.O_CREAT | os.O_WRONLY))

    def back(self, path: str, *, below: bool = True) -> None:
        """Drop the overlay of a path that all ranks have now changed together.

        Args:
            below: whether to include the content of a folder.
        """
        self._gone.difference_update(_and_above(path))
        if self._is_zero:
            for each in _and_above(path):
                remove(self._mark(each))
        if below:
            self._gone = {each for each in self._gone if not each.startswith(f"{path}/")}
            remove(self._mark(path).removesuffix(_MARK) if self._is_zero else self.place(path))

    def changes(self, path: str) -> bool:
        """Return whether a thread or process of this rank has changed the path.

        On rank 0, whether it has made it and left a mark for others.
        """
        return self._is_hidden(path) if self._is_zero else self._own(path) is not None

    def remove_all(self) -> None:
        if self._folder is not None:
            remove_tree(self._folder)
        self._folder = None
        self._gone.clear()

    def _own(self, path: str) -> str | None:
        place = self.place(path)
        return place if os.path.lexists(place) else None

    def _mark(self, path: str) -> str:
        return os.path.join(self._shared or self.folder(), "told") + path + _MARK

    def _is_marked(self, path: str) -> bool:
        return path in self._gone or self.unborn(path) or os.path.lexists(self._mark(path))

    def _is_hidden(self, path: str) -> bool:
        """Return whether the real path, or one above, is hidden from this rank."""
        return any(map(self._is_marked, _and_above(path)))


@contextlib.contextmanager
def called(names: dict[Any, Any]) -> Iterator[None]:
    """Restore the script's own path names in system errors raised inside.

    The names replaced are the keys of `names`.

    Args:
        names: the script's names by actual path.
    """
    try:
        yield
    except OSError as error:
        if error.filename in names:
            error.filename = names[error.filename]
        if error.filename2 in names:
            error.filename2 = names[error.filename2]
        raise


def remove(place: str) -> None:
    """Remove a file or folder, if it exists."""
    if os.path.isdir(place) and not os.path.islink(place):
        open_up(place)
        shutil.rmtree(place, ignore_errors=True)
    elif os.path.lexists(place):
        os.unlink(place)


def _straight(path: str, last: bool) -> str:
    above, name = os.path.split(path)
    return os.path.realpath(path) if last else os.path.join(os.path.realpath(above), name)


def _and_above(path: str) -> Iterator[str]:
    yield path
    while path != (path := os.path.dirname(path)):
        yield path

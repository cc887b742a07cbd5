"""A folder of this rank alone, and copies in it of files that it reads and writes as its own."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable

from ronde.trace.temporary_folder import TemporaryFolders, remove_tree

__all__ = ["Mirrors", "copy_tree"]


class Mirrors:
    """This rank's stand-ins for files that a library keeps open and writes by itself (databases, HDF5).

    A mirror lives as long as the run and is read back in place of the file, so that a rank sees what
    it wrote itself; it is forgotten when the script replaces or removes the file.

    Args:
        temporary: where the folder is made.
        made: is told of it.
    """

    def __init__(self, temporary: TemporaryFolders, made: Callable[[str], None]) -> None:
        self._temporary = temporary
        self._made = made
        self._folder: str | None = None
        self._lock = threading.RLock()  # a collected file may come to this in here
        self._numbers = itertools.count(1)
        self._mirrors: dict[str, str] = {}

    def folder(self) -> str:
        """This rank's own; made when it is first asked for."""
        if self._folder is None:
            with self._lock:
                if self._folder is None:
                    folder = self._temporary.new()
                    self._made(folder)
                    self._folder = folder
        return self._folder

    def place(self, name: str) -> str:
        """A path for a new file of this rank, ending in `name`."""
        return os.path.join(self.folder(), f"{next(self._numbers)}-{name}")

    def find(self, located: str) -> str | None:
        return self._mirrors.get(located)

    def make(self, located: str, companions: tuple[str, ...] = ()) -> str:
        """The mirror of `located`, with its content of now when it is new.

        Args:
            companions: suffixes of files beside it that belong to it.
        """
        if located not in self._mirrors:
            mirror = self.place(os.path.basename(located))
            for suffix in ("", *companions):
                if os.path.isfile(located + suffix):
                    shutil.copyfile(located + suffix, mirror + suffix)
            self._mirrors[located] = mirror
        return self._mirrors[located]

    def copy(self, source: str, size: int = 0) -> str:
        """A new file with the content of `source`; where that is not there, of this size."""
        place = self.place("copy")
        if os.path.isfile(source):
            shutil.copyfile(source, place)
        else:
            with open(place, "wb") as file:
                file.truncate(size)
        return place

    def forget(self, located: str) -> None:
        """`located` was changed as a whole: the next use starts from the file itself."""
        for path in [path for path in self._mirrors if f"{path}/".startswith(f"{located}/")]:
            del self._mirrors[path]

    def remove_all(self) -> None:
        if self._folder is not None:
            remove_tree(self._folder)
        self._folder = None
        self._mirrors.clear()


def copy_tree(source: str, target: str) -> None:
    """Copy a file, or a folder with all below it."""
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)

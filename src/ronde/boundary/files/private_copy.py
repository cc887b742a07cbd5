"""Copies of files that a rank other than the main one may read and write as its own."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable

from ronde.trace.temporary_folder import TemporaryFolders, open_up, remove_tree

__all__ = ["Mirrors", "copy_tree", "discard", "keep", "open_copy", "remove"]


def open_copy(source: str | None, mode: str, name: str | bytes, above: str | None) -> io.FileIO:
    """An unnamed temporary file with the content of `source` (or none), opened by `mode`, called `name`.

    Args:
        above: the folder in which it has a name for a moment; None: that of `tempfile`.
    """
    descriptor, path = tempfile.mkstemp(prefix="ronde-", dir=above)
    os.close(descriptor)
    try:
        if source is not None:
            shutil.copyfile(source, path)
        raw = io.FileIO(path, mode.replace("x", "w"))
    finally:
        os.unlink(path)
    raw.name = name  # pyright: ignore[reportAttributeAccessIssue]
    return raw


def discard(write: Callable[[str], object], above: str | None = None) -> None:
    """Let `write(path)` write a file that nobody reads.

    Not /dev/null: safetensors writes beside its target and renames, which for root would replace
    the device by a regular file.

    Args:
        above: see `open_copy`.
    """
    folder = tempfile.mkdtemp(prefix="ronde-", dir=above)
    try:
        write(os.path.join(folder, "discarded"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_tree(source: str, target: str) -> None:
    """Copy a file, or a folder with all below it."""
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def keep(source: str, place: str, *, linked: bool = False) -> None:
    """Put a file, a folder with all below it, or a link as it stands, at `place`.

    Args:
        linked: what a file holds may be shared where that costs nothing.
    """
    copy = _link if linked else shutil.copy2
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, place, symlinks=True, copy_function=copy)
    else:
        copy(source, place, follow_symlinks=False)


def remove(place: str) -> None:
    """Remove it, whatever it is."""
    if os.path.isdir(place) and not os.path.islink(place):
        open_up(place)
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.unlink(place)


def _link(source: str, place: str, *, follow_symlinks: bool = True) -> None:
    try:
        os.link(source, place, follow_symlinks=follow_symlinks)
    except OSError:  # another file system, or one that has none
        shutil.copy2(source, place, follow_symlinks=follow_symlinks)


class Mirrors:
    """This rank's stand-ins for files that a library keeps open and writes by itself (databases, HDF5).

    A mirror lives as long as the run and is read back in place of the file, so that a rank sees what
    it wrote itself; it is forgotten when the script replaces or removes the file.

    Args:
        temporary: where their folder is made.
    """

    def __init__(self, temporary: TemporaryFolders) -> None:
        self.temporary = temporary
        self._folder: str | None = None
        self._count = 0
        self._mirrors: dict[str, str] = {}

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

    def place(self, name: str) -> str:
        """A path for a new file of this rank, ending in `name`."""
        if self._folder is None:
            self._folder = self.temporary.new()
        self._count += 1
        return os.path.join(self._folder, f"{self._count}-{name}")

    def forget(self, located: str) -> None:
        """`located` was mutated as a whole: the next use starts from the file itself."""
        for path in [path for path in self._mirrors if path == located or path.startswith(located + "/")]:
            del self._mirrors[path]

    def remove_all(self) -> None:
        if self._folder is not None:
            remove_tree(self._folder)
        self._folder = None
        self._mirrors.clear()

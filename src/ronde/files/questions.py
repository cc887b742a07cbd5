"""Questions to the file system: answered as of this point of the script, on every rank."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ronde.files.overlay import called
from ronde.files.rank_files import RankFiles

__all__ = ["QUESTIONS", "asking"]

QUESTIONS = ("stat", "lstat", "access", "listdir", "scandir", "readlink")
"""Functions of `os` whose first argument, `path`, is asked about; `os.path` and `pathlib` stand on them."""

_LISTINGS = ("listdir", "scandir")
_OF_LINKS = ("lstat", "readlink")


def asking(files: RankFiles, plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, of what the script wrote there, and of what threads of this rank have made of it."""
    name = plain.__name__

    @functools.wraps(plain)
    def ask(*args: Any, **kwargs: Any) -> Any:
        if not files.asks_for_more() or kwargs.get("dir_fd") is not None:
            return plain(*args, **kwargs)
        path = args[0] if args else kwargs.get("path")
        path = "." if path is None and name in _LISTINGS else path
        located = files.mediated(path)
        if located is not None:
            files.before_reading(located)

        def asked(path: Any) -> Any:
            return plain(path, *args[1:], **kwargs) if args else plain(**{**kwargs, "path": path})

        if name in _LISTINGS and not isinstance(path, bytes):
            return _listed(files, asked, path, scans=name == "scandir")
        follow = name not in _OF_LINKS and kwargs.get("follow_symlinks", True)
        try:
            return files.look(path, asked, follow=follow)
        except FileNotFoundError:
            if name == "access":
                return False
            raise

    return ask


def _listed(files: RankFiles, asked: Callable[[Any], Any], path: Any, *, scans: bool) -> Any:
    """The names or entries in a folder."""
    folder = files.found_aside(path)
    if folder is None:
        return asked(files.paths.renamed(path))
    with files.callers.unmediated(), called({folder: path, files.overlay.place(folder): path}):
        names = files.overlay.listed(folder)
    return _Entries(_Entry(os.fspath(path), name) for name in names) if scans else names


class _Entry:
    """An entry as `os.DirEntry` is one; it asks by the name that the script knows."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        return False

    def _mode(self, follow_symlinks: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0


class _Entries:
    """What `os.scandir` returns."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())

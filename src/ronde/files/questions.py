"""Stat-like calls, which all ranks answer as of this point of the script."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ronde.files.rank_files import RankFiles

__all__ = ["QUESTIONS", "asking"]

QUESTIONS = ("stat", "lstat", "access", "listdir", "scandir", "readlink", "getxattr", "listxattr")
"""Functions of `os` whose first argument, `path`, is queried; `os.path` and `pathlib` call them."""


def asking(files: RankFiles, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `plain` to answer with the script's writes and this rank's overlay."""
    name = plain.__name__
    lists = name in ("listdir", "scandir")

    @functools.wraps(plain)
    def ask(*args: Any, **kwargs: Any) -> Any:
        if not files.asks_for_more() or kwargs.get("dir_fd") is not None:
            return plain(*args, **kwargs)
        path, *rest = args or (kwargs.pop("path", None),)
        path = "." if path is None and lists else path
        history = files.history
        if history is not None and history.replaying and name in ("access", "listdir", "scandir"):
            located = files.mediated(path)
            if located is not None and name == "access" and history.hides(located):
                return False
            if located is not None and lists and not isinstance(path, bytes):
                names = history.without_hidden(located, os.listdir(path))
                return list(names) if name == "listdir" else _Entries(_Entry(path, each) for each in names)
        follow = name not in ("lstat", "readlink") and kwargs.get("follow_symlinks", True)
        with files.reading(path, follow=follow) as place:
            folder = files.found_aside(path) if lists and not isinstance(path, bytes) else None
            if folder is None:
                return plain(place, *rest, **kwargs)
            with files.callers.unmediated():
                names = files.overlay.listed(folder)
            return names if name == "listdir" else _Entries(_Entry(path, each) for each in names)

    return ask


class _Entry:
    """Substitute for `os.DirEntry`, under the path that the script knows."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)


class _Entries:
    """Substitute for the iterator that `os.scandir` returns."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())

"""What threads of the script write on other ranks than the main one: aside, where this rank alone sees it.

Threads are not in step, so ranks cannot meet over what they write. The main rank's threads write the files.
The others' do the same to a tree that lies over the real one: what a thread wrote, moved or removed is found
so by every thread of its rank, whether or not the main rank's has come as far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from ronde.boundary.files.beginnings import Beginnings

__all__ = ["Aside"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of `os.scandir` under the name that the script knows."""

    path: str
    entry: os.DirEntry[str]

    @property
    def name(self) -> str:
        return self.entry.name

    def __fspath__(self) -> str:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entry, name)


class _Entries:
    """What `os.scandir` returns."""

    def __init__(self, entries: list[Any]) -> None:
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


class Aside:
    """The tree. Its functions work on the file system directly: callers see to it that nothing mediates them.

    Args:
        make_root: gives the folder, when it is first needed.
        beginnings: tell what the main rank's threads have made, which is not to be seen here.
    """

    def __init__(self, make_root: Callable[[], str], beginnings: Beginnings) -> None:
        self._make_root = make_root
        self._beginnings = beginnings
        self._root = ""
        self._gone: set[str] = set()

    @property
    def in_use(self) -> bool:
        """Whether a thread has changed anything."""
        return bool(self._root)

    def find(self, located: str) -> str | None:
        """Where it lies, if it lies aside."""
        place = self._root + located
        return place if self._root and os.path.lexists(place) else None

    def is_gone(self, located: str) -> bool:
        """Whether a thread removed it, or a folder above, and made nothing in its place."""
        if not self._gone or self.find(located) is not None:
            return False
        path = located
        while path not in self._gone:
            parent = os.path.dirname(path)
            if parent == path:
                return False
            path = parent
        return True

    def source(self, located: str, name: Any) -> str:
        """Where to read it; `name` is what the script calls it.

        Raises:
            FileNotFoundError: when a thread removed it.
        """
        if self.is_gone(located):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self.find(located) or located

    def is_folder(self, located: str) -> bool:
        """Whether there is a folder of this name for this rank."""
        found = self.find(located)
        return os.path.isdir(located if found is None else found) and not self.is_gone(located)

    def make_folder(self, located: str, by: Callable[[str], object]) -> None:
        """Let `by` make it here; folders above it come along."""
        place = self._place(located)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        by(place)
        self._gone.discard(located)

    def was_there(self, located: str) -> bool:
        """Whether it is there for this rank without its threads' doing."""
        return not self.is_gone(located) and self._beginnings.was_there(located)

    def whole(self, located: str) -> str:
        """A folder with all that it holds for this rank, gathered here."""
        place = self._place(located)
        os.makedirs(place, exist_ok=True)
        for name in self.listed(located, lambda: os.listdir(located)):
            inner = os.path.join(located, name)
            if self.is_folder(inner):
                self.whole(inner)
            elif self.find(inner) is None:
                with contextlib.suppress(FileNotFoundError):  # the main rank's thread was faster
                    shutil.copy2(inner, os.path.join(place, name), follow_symlinks=False)
        return place

    def _place(self, located: str) -> str:
        if not self._root:
            self._root = self._make_root()
        return self._root + located

    def target(self, located: str, *, keep: bool = False) -> str:
        """Where to write it.

        The place itself where the folder around it is missing: there the failure is the script's.

        Args:
            keep: what it holds is kept.
        """
        if not self.is_folder(os.path.dirname(located)):
            return located
        place = self._place(located)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.lexists(place) and self.was_there(located):
            if os.path.isdir(located):
                os.mkdir(place)  # to be copied into
            elif keep:
                self._beginnings.of(located, place)
        self._gone.discard(located)
        return place

    def remove(self, located: str, by: Callable[[str], object]) -> None:
        """Take it away from what this rank sees; the real one is the main rank's to remove."""
        place = self.find(located)
        if place is not None:
            by(place)
        self._place(located)
        self._gone.add(located)

    def move(self, source: str, target: str, *, own: bool) -> None:
        """`own`: the source is this rank's alone, and lies where it lies."""
        moved = self.target(target)
        if own:
            place = source
        else:
            place = self.whole(source) if self.is_folder(source) else self.source(source, source)
        if os.path.isdir(moved) and not os.path.isdir(place):
            moved = os.path.join(moved, os.path.basename(source))
        if own or place != source:
            shutil.move(place, moved)
        elif os.path.exists(place):  # else the main rank has moved it already
            shutil.copy2(place, moved)
        if not own:
            self._gone.add(source)

    def forget(self, located: str) -> None:
        """What counts is the real one again."""
        place = self.find(located)
        if place is not None:
            shutil.rmtree(place) if os.path.isdir(place) and not os.path.islink(place) else os.unlink(place)
        self._gone -= {path for path in self._gone if f"{path}/".startswith(f"{located}/")}

    def listed(self, located: str, list_real: Callable[[], list[str]]) -> list[str]:
        """The names in a folder."""
        place = self.find(located)
        ours = os.listdir(place) if place else []
        kept = self._kept(located, self._real(located, place, list_real))
        return kept + sorted(set(ours) - set(kept))

    def scanned(self, path: str, located: str, scan_real: Callable[[], Any]) -> Any:
        """The entries of a folder, as `os.scandir` gives them."""
        place = self.find(located)
        ours = {entry.name: entry for entry in os.scandir(place)} if place else {}
        entries = self._real(located, place, lambda: list(scan_real()))
        names = set(self._kept(located, [entry.name for entry in entries])) - set(ours)
        kept = [entry for entry in entries if entry.name in names]
        return _Entries([*kept, *(_Entry(os.path.join(path, name), ours[name]) for name in sorted(ours))])

    def _kept(self, located: str, names: list[str]) -> list[str]:
        """The real entries that this rank sees, or has in a form of its own."""
        made = self._beginnings.made_inside(located, names)
        return [
            name
            for name in names
            if not self.is_gone(inner := os.path.join(located, name))
            and (name not in made or self.find(inner) is not None)
        ]

    def _real(self, located: str, place: str | None, ask: Callable[[], list[Any]]) -> list[Any]:
        if place is None and self.is_gone(located):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), located)
        try:
            return ask()
        except FileNotFoundError:
            if place is None:
                raise
            return []

    def visible_name(self, path: Any) -> Any:
        """A path that a function returned, by its name for the script."""
        inside = isinstance(path, str) and bool(self._root) and path.startswith(self._root + os.sep)
        return path[len(self._root) :] if inside else path

    def clear(self) -> None:
        """The tree is gone."""
        self._root = ""
        self._gone.clear()

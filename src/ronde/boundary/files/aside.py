"""What threads of the script write on other ranks than the main one: aside, where this rank alone sees it.

Threads are not in step, so ranks cannot meet over what they write. The main rank's threads write the files.
The others' do the same to a tree that lies over the real one, as that was before the main rank's threads
changed it: what a thread wrote, moved or removed is found so by every thread of its rank, and nothing else
is, whether or not the main rank's has come as far.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ronde.boundary.files.beginnings import Beginnings
from ronde.boundary.files.entries import Entries, Entry
from ronde.boundary.files.links import resolved
from ronde.boundary.files.paths import and_above
from ronde.boundary.files.private_copy import keep, remove

__all__ = ["Aside"]

T = TypeVar("T")

_Folder = tuple[str, str | None, str | None, dict[str, str | None]]
"""A folder's path without links, where it lies aside, where it lies as it was, what was changed in it."""


class Aside:
    """The tree. Its functions work on the file system directly: callers see to it that nothing mediates them.

    Paths are absolute; where a function says so, by `resolve`, they have no links in them.

    Args:
        make_root: gives the folder, when it is first needed.
        beginnings: tell what the main rank's threads have made, which is not to be seen here.
    """

    def __init__(self, make_root: Callable[[], str], beginnings: Beginnings) -> None:
        self._make_root = make_root
        self._beginnings = beginnings
        self._root = ""
        self._copies = itertools.count(1)
        self._lock = threading.Lock()
        self._gone: set[str] = set()
        self._back: set[str] = set()

    @property
    def in_use(self) -> bool:
        """Whether a thread has changed anything."""
        return bool(self._root)

    def resolve(self, located: str, *, last: bool) -> str:
        """The path without links, as this rank sees them.

        Args:
            last: the last name is followed too.
        """
        return resolved(located, self._text_of, last=last)

    def find(self, path: str) -> str | None:
        """Where it lies, if it lies aside."""
        place = self._root + path
        return place if self._root and os.path.lexists(place) else None

    def where(self, path: str) -> str | None:
        """Where a path without links lies for this rank, as far as is known; None if it is not there."""
        place = self.find(path)
        if place is not None:
            return place
        return None if self._is_taken(path) else self._beginnings.was(path)

    def asked(
        self,
        located: str,
        act: Callable[[str | None], T],
        *,
        follow: bool = True,
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """What `act` says of where this lies.

        The main rank's threads say what they are about to change before they do: where they have said nothing
        by the time that `act` is done, it saw what was there before them.

        Args:
            follow: where the link leads, if it is one.
            undo: is given what `act` gave in vain.
        """
        return self._steady(lambda: self._place_of(located, follow=follow), act, undo)

    def _place_of(self, located: str, *, follow: bool) -> str | None:
        if not self._root and not self._beginnings.position:
            return located  # nothing has been told, and no thread of this rank has changed anything
        return self.where(self.resolve(located, last=follow))

    def is_there(self, path: str) -> bool:
        """Whether there is something of this name for this rank."""
        return self.asked(path, lambda place: place is not None and os.path.lexists(place), follow=False)

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder of this name for this rank."""

        def is_folder(place: str | None) -> bool:
            return place is not None and os.path.isdir(place) and not os.path.islink(place)

        return self.asked(path, is_folder, follow=False)

    def absence(self, path: str) -> int:
        """The number of the error of whoever looks for what is not there."""
        for above in and_above(os.path.dirname(path)):
            if self.is_folder(above):
                break
            if self.is_there(above):
                return errno.ENOTDIR
        return errno.ENOENT

    def target(self, path: str, *, keep: bool = False) -> str:
        """Where to write what has no links in its path.

        Where the folder around it is missing, it is missing there: the failure is the script's.

        Args:
            keep: what it holds is kept.
        """
        place = self.place(path)
        if not self.is_folder(os.path.dirname(path)):
            self._fetch_obstacle(path)
            return place
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.lexists(place):
            if self.is_folder(path):
                os.mkdir(place)  # to be copied into
            elif keep:
                self.fetch(path)
        return place

    def fetch(self, path: str) -> str:
        """Have here what it is for this rank, if it is anything: a folder with all that it holds."""
        place = self.place(path)
        if self.is_folder(path):
            os.makedirs(place, exist_ok=True)
            for name in self.listed(path):
                self.fetch(os.path.join(path, name))
        elif not os.path.lexists(place):
            copy = f"{self._root}.{next(self._copies)}"
            with contextlib.suppress(FileNotFoundError):
                self.asked(path, lambda source: _copied(source, copy), follow=False, undo=remove)
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.rename(copy, place)
        return place

    def remove(self, path: str) -> None:
        """Take it away from what this rank sees; the real one is the main rank's to remove."""
        place = self.find(path)
        if place is not None:
            remove(place)
        self.place(path)
        self._back.difference_update([back for back in list(self._back) if _is_within(back, path)])
        self._gone.add(path)

    def move(self, source: str, target: str, *, own: bool) -> None:
        """Give it another name.

        Args:
            own: the source is this rank's alone, and lies where it lies.
        """
        place = source if own else self.fetch(source)
        moved = self.target(target)
        if own:
            shutil.move(place, moved)
        elif source != target:
            os.replace(place, moved)
            self.remove(source)

    def back(self, path: str) -> None:
        """What counts is the real one again."""
        place = self.find(path)
        if place is not None:
            remove(place)
        self._gone.difference_update([gone for gone in list(self._gone) if _is_within(gone, path)])
        self.stand(path)

    def stand(self, path: str) -> None:
        """It is there now, and so are the folders above it."""
        hidden = [above for above in and_above(path) if self._is_taken(above) and self.find(above) is None]
        self._back.update(hidden)

    def listed(self, located: str) -> list[str]:
        """The names in a folder."""
        return [name for name, _ in self._inside(located, None)]

    def changed_inside(self, folder: str) -> set[str]:
        """The names in a folder without links that threads of this rank have made, written to or removed."""
        place = self.find(folder)
        made = os.listdir(place) if place is not None and os.path.isdir(place) else []
        return {
            *made,
            *(os.path.basename(path) for path in list(self._gone) if os.path.dirname(path) == folder),
        }

    def scanned(self, path: str, located: str, scan: Callable[[str], Any]) -> Any:
        """The entries of a folder, as `os.scandir` gives them.

        Args:
            path: the folder as the script calls it.
            scan: gives those of a real one.
        """
        found = self._inside(located, scan)
        return Entries([Entry(path, name) if entry is None else entry for name, entry in found])

    def visible_name(self, path: Any) -> Any:
        """A path that a function returned, by its name for the script."""
        inside = isinstance(path, str) and bool(self._root) and path.startswith(self._root + os.sep)
        return path[len(self._root) :] if inside else path

    def clear(self) -> None:
        """The tree is gone."""
        self._root = ""
        self._gone.clear()
        self._back.clear()

    def _inside(self, located: str, scan: Callable[[str], Any] | None) -> list[tuple[str, Any]]:
        """Names in a folder; with entries where these are the real ones and `scan` gives them."""

        def folder() -> _Folder:
            path = self.resolve(located, last=True)
            base = None if self._is_taken(path) else self._beginnings.was(path)
            return path, self.find(path), base, self._beginnings.changed_inside(path)

        def look(seen: _Folder) -> list[tuple[str, Any]]:
            path, place, base, changed = seen
            ours = os.listdir(place) if place is not None else []
            if place is None and base is None:
                number = self.absence(path)
                raise OSError(number, os.strerror(number), located)
            entries = _entries(base, scan if base == located else None, strict=place is None)
            names = {name for name in entries if name not in changed}
            names |= {name for name, was in changed.items() if was is not None}
            names = {name for name in names if not self._is_taken(os.path.join(path, name))}
            first = [(name, entries[name]) for name in entries if name in names and name not in ours]
            seen_first = {name for name, _ in first}
            return first + [(name, None) for name in sorted({*ours, *names} - seen_first)]

        return self._steady(folder, look)

    def _steady(
        self, ask: Callable[[], Any], act: Callable[[Any], T], undo: Callable[[T], object] | None = None
    ) -> T:
        """`act` on what `ask` says, when that is still so afterwards."""
        while True:
            position = self._beginnings.position
            known = ask()
            failure: OSError | None = None
            answer: Any = None
            try:
                answer = act(known)
            except OSError as error:
                failure = error
            self._beginnings.read()
            if self._beginnings.position == position or ask() == known:
                if failure is not None:
                    raise failure
                return answer
            if failure is None and undo is not None:
                undo(answer)

    def _text_of(self, path: str) -> str | None:
        place = self.where(path)
        try:
            return None if place is None else os.readlink(place)
        except OSError:
            return None

    def _is_taken(self, path: str) -> bool:
        """Whether a thread removed it, or a folder above, whatever it then made in its place."""
        for above in and_above(path) if self._gone else ():
            if above in self._back:
                return False
            if above in self._gone:
                return True
        return False

    def place(self, path: str) -> str:
        """Where it lies if it lies aside."""
        with self._lock:
            if not self._root:
                self._root = self._make_root()
        return self._root + path

    def _fetch_obstacle(self, path: str) -> None:
        """Where a file stands in the way of what is to be written, it does so here."""
        for above in and_above(os.path.dirname(path)):
            if self.is_folder(above):
                return
            if self.is_there(above):
                self.fetch(above)
                return


def _copied(source: str | None, copy: str) -> str:
    if source is None:
        raise FileNotFoundError
    keep(source, copy)
    return copy


def _entries(folder: str | None, scan: Callable[[str], Any] | None, *, strict: bool) -> dict[str, Any]:
    """Names in a folder, if there is one, each with its entry or none.

    Args:
        strict: there must be one.
    """
    try:
        if folder is None:
            return {}
        if scan is None:
            return dict.fromkeys(os.listdir(folder))
        with scan(folder) as entries:
            return {entry.name: None if entry.is_symlink() else entry for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        if strict:
            raise
        return {}


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")

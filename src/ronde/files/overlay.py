"""What another rank than 0 has instead of files that rank 0 writes: a tree over the real one.

Threads and processes of rank 0 change the real files. Those of another rank change its tree. Libraries that
keep a file open and write it by themselves (databases, HDF5) work on a copy of it in there. A rank looks into
its own tree first, and then at the real files, but for those that threads of rank 0 have made: they are not
there for it before its own have come as far.
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
"""Behind the name of a path that rank 0's threads have made."""


class Overlay:
    """One rank's view of it; callers see to it that nothing mediates what is done here.

    Paths are absolute and `resolve`d. A forked process shares the tree with its rank.

    Args:
        rank: whose view it is.
        temporary: where this rank's own folder is made.
        made: is told of it.
        shared: a folder of all ranks of this host, to be removed when all are gone; None: others do not learn
            what rank 0's threads make.

    Attributes:
        unborn: whether the real one was made later than the script has come, on its way back.
    """

    def __init__(
        self, rank: int, temporary: TemporaryFolders, made: Callable[[str], None], shared: str | None
    ) -> None:
        self._is_zero = rank == 0
        self._temporary = temporary
        self._made = made
        self._shared = shared
        self._folder: str | None = None
        self._lock = threading.RLock()  # a collected file may come to this in here
        self._numbers = itertools.count(1)
        self._gone: set[str] = set()
        self.unborn: Callable[[str], bool] = lambda path: False

    def folder(self) -> str:
        """This rank's own; made when it is first asked for."""
        if self._folder is None:
            with self._lock:
                if self._folder is None:
                    folder = os.path.realpath(self._temporary.new())
                    self._made(folder)
                    self._folder = folder
        return self._folder

    def scratch(self, source: str = "", size: int = 0) -> str:
        """A new file beside the tree, with the content of `source`; where that is not there, of this size."""
        place = os.path.join(self.folder(), str(next(self._numbers)))
        if os.path.isfile(source):
            shutil.copyfile(source, place)
        else:
            with open(place, "wb") as file:
                file.truncate(size)
        return place

    def place(self, path: str) -> str:
        """Where it lies if it lies in this rank's tree."""
        return os.path.join(self.folder(), "made") + path

    def resolve(self, located: str, *, last: bool) -> str:
        """An absolute path without links, as this rank sees them.

        Args:
            last: the last name is followed too.
        """
        if not self._is_zero:
            tree = self.place("")
            located = _straight(tree + located, last).removeprefix(tree)
            if os.path.lexists(tree + located):
                return located
        return _straight(located, last)

    def find(self, path: str) -> str:
        """Where this rank has it; what is not there for it would lie in its tree."""
        own = self._own(path)
        if own is not None:
            return own
        # Threads of rank 0 tell before they make a file: what is there, and not told of, was there before.
        return path if os.path.lexists(path) and not self._is_hidden(path) else self.place(path)

    def listed(self, folder: str) -> list[str]:
        """The names in a folder."""
        own = self.place(folder)
        if self.find(folder) == own and not os.path.isdir(own):
            return os.listdir(own)  # it says why not
        names = dict.fromkeys(os.listdir(own) if os.path.isdir(own) else ())
        if os.path.isdir(folder) and not self._is_hidden(folder):
            for name in os.listdir(folder):
                if not self._is_marked(os.path.join(folder, name)):
                    names[name] = None
        return list(names)

    def target(self, path: str, *, keep: bool = False) -> str:
        """Where this rank's thread writes it.

        Where the folder around it is missing, it is missing there: the failure is the script's.

        Args:
            keep: what it holds is kept.
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
        """Have a copy of it in the tree, if it is there: of a folder with all that it holds."""
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
        """It is gone for this rank; the real one is rank 0's to remove."""
        remove(self.place(path))
        self._gone.add(path)

    def tell(self, path: str) -> None:
        """A thread of rank 0 is about to make this."""
        with contextlib.suppress(OSError):  # no room: others see it as it comes
            if self._shared is not None and not os.path.lexists(path):
                mark = self._mark(path)
                os.makedirs(os.path.dirname(mark), exist_ok=True)
                os.close(os.open(mark, os.O_CREAT | os.O_WRONLY))

    def back(self, path: str, *, below: bool = True) -> None:
        """All ranks have changed it: what counts is the real one.

        Args:
            below: and of all that lies in it.
        """
        self._gone.difference_update(_and_above(path))
        if self._is_zero:
            for each in _and_above(path):
                remove(self._mark(each))
        if below:
            self._gone = {each for each in self._gone if not each.startswith(f"{path}/")}
            remove(self._mark(path).removesuffix(_MARK) if self._is_zero else self.place(path))

    def changes(self, path: str) -> bool:
        """Whether a thread or process of this rank has made it, as far as others were told, or changed it."""
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
        """Whether the real one is not meant: it, or a folder above, is gone or made by rank 0's threads."""
        return any(map(self._is_marked, _and_above(path)))


@contextlib.contextmanager
def called(names: dict[Any, Any]) -> Iterator[None]:
    """Inside, an error of the system gets the script's name for a place.

    Args:
        names: by place.
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
    """Remove it, whatever it is, if it is there."""
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

"""What threads and processes of the script change on other ranks than 0: a tree over the real one.

Those of rank 0 change the real files. Another rank looks into its own tree first, and then at the real files,
but for those that threads of rank 0 have made: they are not there for it before its own have come as far.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ronde.trace.temporary_folder import open_up

__all__ = ["Overlay", "called", "remove"]

T = TypeVar("T")
_MOST_LINKS = 40
_MARK = "\x01"
"""A file of this name, in a folder that stands for a path, marks the path."""


class Overlay:
    """One rank's view of it; callers see to it that nothing mediates what is done here.

    Paths are absolute and `resolve`d. All is kept in folders, so a forked process shares it with its rank.

    Args:
        rank: whose view it is.
        folder: gives this rank's own folder, which is made when it is first asked for.
        shared: a folder of all ranks of this host, to be removed when all are gone; None: others do not learn
            what rank 0's threads make.
    """

    def __init__(self, rank: int, folder: Callable[[], str], shared: str | None) -> None:
        self._is_zero = rank == 0
        self._folder = folder
        self._shared = shared

    def place(self, path: str) -> str:
        """Where it lies if it lies in this rank's tree."""
        return os.path.join(self._folder(), "made") + path

    def resolve(self, located: str, *, last: bool) -> str:
        """An absolute path without links, as this rank sees them.

        Args:
            last: the last name is followed too.
        """
        if self._is_zero and last:
            return os.path.realpath(located)
        found, links = "/", 0
        rest = located.split("/")[::-1]
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            inner = os.path.dirname(found) if name == ".." else os.path.join(found, name)
            place = inner if self._is_zero else self._own(inner) or inner
            if (rest or last) and os.path.islink(place) and links < _MOST_LINKS:
                links += 1
                text = os.readlink(place)
                found = "/" if text.startswith("/") else found
                rest += text.split("/")[::-1]
            else:
                found = inner
        return found

    def look(self, path: str, act: Callable[[str], T], undo: Callable[[T], object] | None = None) -> T:
        """What `act` says of where this lies.

        Args:
            undo: is given what `act` said of what is not to be seen.

        Raises:
            FileNotFoundError: when it is not there for this rank.
        """
        own = self._own(path)
        return self._look_below(path, act, undo) if own is None else act(own)

    def is_there(self, path: str, kind: Callable[[str], bool] = os.path.lexists) -> bool:
        """Whether there is something of this name, and of this kind, for this rank."""
        try:
            return self.look(path, kind)
        except FileNotFoundError:
            return False

    def listed(self, folder: str) -> list[str]:
        """The names in a folder."""
        own = self.place(folder)
        ours = os.listdir(own) if os.path.lexists(own) else None
        try:
            names = self._look_below(folder, os.listdir)
        except (FileNotFoundError, NotADirectoryError):
            if ours is None:
                raise
            names = []
        hidden = {*_marked_in(self._gone(folder)), *_marked_in(self._told(folder)), *(ours or ())}
        return [*(name for name in names if name not in hidden), *(ours or ())]

    def target(self, path: str, *, keep: bool = False) -> str:
        """Where this rank's thread writes it.

        Where the folder around it is missing, it is missing there: the failure is the script's.

        Args:
            keep: what it holds is kept.
        """
        place = self.place(path)
        if self.is_there(os.path.dirname(path), os.path.isdir):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if self.is_there(path, os.path.isdir):
                os.makedirs(place, exist_ok=True)
            elif keep:
                self.fetch(path)
        return place

    def fetch(self, path: str) -> str:
        """Have a copy of it in the tree, if it is there: of a folder with all that it holds."""
        place = self.place(path)
        if self.is_there(path, os.path.isdir) and not self.is_there(path, os.path.islink):
            names = self.listed(path)
            os.makedirs(place, exist_ok=True)
            for name in names:
                self.fetch(os.path.join(path, name))
        elif not os.path.lexists(place) and self.is_there(path):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)
        return place

    def source(self, path: str, *, copies: bool) -> str:
        """Where this rank has what is read: as a copy, if it is a folder, or is to be one."""
        if copies or self.is_there(path, os.path.isdir):
            return self.fetch(path)
        return path if self._own(path) is None and self.is_there(path) else self.place(path)

    def take(self, path: str) -> None:
        """It is gone for this rank; the real one is rank 0's to remove."""
        remove(self.place(path))
        _mark(self._gone(path))

    def tell(self, path: str) -> None:
        """A thread of rank 0 is about to make this."""
        with contextlib.suppress(OSError):  # no room: others see it as it comes
            for each in _and_above(path) if self._shared is not None else ():
                if os.path.lexists(each):
                    return
                _mark(self._told(each))

    def back(self, path: str, *, below: bool = True) -> None:
        """All ranks have changed it: what counts is the real one.

        Args:
            below: and of all that lies in it.
        """
        marks = self._told if self._is_zero else self._gone
        for each in _and_above(path):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(marks(each), _MARK))
        if below:
            shutil.rmtree(marks(path), ignore_errors=True)
            if not self._is_zero:
                remove(self.place(path))

    def changes(self, path: str) -> bool:
        """Whether a thread or process of this rank has made it, as far as others were told, or changed it."""
        return self._is_hidden(path) if self._is_zero else self._own(path) is not None

    def _own(self, path: str) -> str | None:
        place = self.place(path)
        return place if os.path.lexists(place) else None

    def _look_below(self, path: str, act: Callable[[str], T], undo: Callable[[T], object] | None = None) -> T:
        if not (_is_marked(self._gone, path) or self._is_hidden(path)):
            answer = act(path)
            # Asked again after it, because a thread of rank 0 tells before it makes a file.
            if not self._is_hidden(path):
                return answer
            if undo is not None:
                undo(answer)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _is_hidden(self, path: str) -> bool:
        return self._shared is not None and _is_marked(self._told, path)

    def _gone(self, path: str) -> str:
        return os.path.join(self._folder(), "gone") + path

    def _told(self, path: str) -> str:
        return os.path.join(self._shared or self._folder(), "told") + path


def remove(place: str) -> None:
    """Remove it, whatever it is, if it is there."""
    if os.path.isdir(place) and not os.path.islink(place):
        open_up(place)
        shutil.rmtree(place, ignore_errors=True)
    elif os.path.lexists(place):
        os.unlink(place)


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


def _and_above(path: str) -> Iterator[str]:
    yield path
    while path != (path := os.path.dirname(path)):
        yield path


def _mark(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    os.close(os.open(os.path.join(folder, _MARK), os.O_CREAT | os.O_WRONLY))


def _is_marked(marks: Callable[[str], str], path: str) -> bool:
    """Whether the path, or a folder above it, is."""
    return os.path.isdir(marks("")) and any(
        os.path.lexists(os.path.join(marks(each), _MARK)) for each in _and_above(path)
    )


def _marked_in(folder: str) -> list[str]:
    """Names in a folder that are marked."""
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(folder) if os.path.lexists(os.path.join(folder, name, _MARK))]
    return []

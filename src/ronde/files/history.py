"""What a script has done to files, so that it can be brought back to a step without doing it again.

On the way back nothing is written: a change has the outcome that it had, whatever its place among others, as
a library may do less the second time (a data set is there already). What the script made is not there yet
when it asks before it has made it: `run-1` is taken for this run too. Only what it had made before it
trained, and had read, is there from the beginning: a data set that was downloaded. When the script has come
to where it was, files that it holds open are the real ones again, cut to the length that they had.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ronde.files.raw_files import NullFile, RawFile

__all__ = ["Event", "FileHistory"]


class Event(NamedTuple):
    """A change that all ranks made together.

    Attributes:
        operation, path: what and where.
        value, failure: what became of it.
        is_new: nothing was there before.
        hidden: it is not there, on the way back, before the script makes it.
    """

    operation: str
    path: str
    value: Any
    failure: Exception | None
    is_new: bool
    hidden: bool


class FileHistory:
    """One rank's record; the same on all ranks but for `is_new`, which rank 0 knows.

    Attributes:
        replaying: the script is on its way back.
        trained: the script has made a step.
    """

    def __init__(self) -> None:
        self.replaying = False
        self.trained = False
        self._events: list[Event] = []
        self._read: set[str] = set()
        self._earlier: dict[tuple[str, str], collections.deque[Event]] = {}
        self._unborn: collections.Counter[str] = collections.Counter()
        # Opened on the way back, and the files that they stand for.
        self._open: list[tuple[NullFile, str]] = []

    def resume(self, events: Iterable[Event]) -> None:
        """Answer with the changes of an earlier run."""
        self.replaying = True
        for event in events:
            self._events.append(event)
            self._earlier.setdefault((event.operation, event.path), collections.deque()).append(event)
            if event.is_new and event.hidden and event.failure is None:
                self._unborn[event.path] += 1

    def events(self) -> list[Event]:
        """All changes so far."""
        return [event._replace(hidden=event.hidden or event.path not in self._read) for event in self._events]

    def read(self, path: str) -> None:
        """The script reads what is in a file, or which there are in a folder."""
        if not self.trained:
            self._read.update((path, *map(str, Path(path).parents)))

    def sizes(self) -> dict[str, int]:
        """Of the files that the script has appended to, as they are now."""
        appended = {event.path for event in self._events if event.operation == "open (a)"}
        return {path: os.stat(path).st_size for path in sorted(appended) if os.path.isfile(path)}

    def add(self, operation: str, path: str, value: Any, failure: Exception | None, *, is_new: bool) -> None:
        self._events.append(Event(operation, path, value, failure, is_new, self.trained))

    def recall(self, operation: str, path: str) -> Event | None:
        """What became of this change in the earlier run; None where it made none, or none further."""
        waiting = self._earlier.get((operation, path))
        if not self.replaying or not waiting:
            return None
        event = waiting.popleft()
        if event.path in self._unborn:
            del self._unborn[event.path]
        return event

    def hides(self, path: str) -> bool:
        """Whether what lies there was made later than the script has come."""
        return self.replaying and bool(self._unborn) and os.path.abspath(path) in self._unborn

    def without_hidden(self, folder: str, names: Iterable[str]) -> Iterator[str]:
        """The names in a folder that are there by now."""
        return (name for name in names if not self.hides(os.path.join(folder, name)))

    def stands_for(self, raw: RawFile, path: str) -> None:
        """A file was opened on the way back that takes no bytes."""
        if isinstance(raw, NullFile):
            self._open.append((raw, path))

    def end_replay(self, sizes: dict[str, int], open_file: Callable[[str, int, int], int] | None) -> None:
        """The script is where it was.

        Args:
            sizes: of files that it had appended to: what came after the checkpoint is cut off.
            open_file: the plain `os.open`; None on ranks that write no files.
        """
        self.replaying = False
        self._earlier.clear()
        self._unborn.clear()
        opened, self._open = self._open, []
        if open_file is None:
            return
        for raw, path in opened:
            if not raw.closed:
                _make_real(raw, path, open_file)
        held = {path for raw, path in opened if not raw.closed}
        for path, size in sizes.items():
            if path not in held and os.path.isfile(path) and os.stat(path).st_size > size:
                os.truncate(path, size)


def _make_real(raw: NullFile, path: str, open_file: Callable[[str, int, int], int]) -> None:
    """Bytes written from now on go to the file, behind those of which the earlier run has written."""
    place, size = raw.tell(), os.fstat(raw.fileno()).st_size
    append = os.O_APPEND if "a" in raw.mode else 0
    opened = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | append, 0o666)
    os.ftruncate(opened, size)
    os.lseek(opened, place, os.SEEK_SET)
    os.dup2(opened, raw.fileno(), inheritable=False)
    os.close(opened)
    raw.__class__ = RawFile  # pyright: ignore[reportAttributeAccessIssue]

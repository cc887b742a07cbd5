"""Records a script's file changes, so that a resumed run does not repeat them.

During replay nothing is written: a change returns its recorded outcome. Changes are matched by operation and
path, not by order, because a library may make fewer the second time (a data set exists already). Files that
the script has yet to make are hidden: `run-1` is taken for this run too. Only files that it had made before
it trained, and had read, are visible from the beginning: a data set that was downloaded. At the end of
replay, files that are still open become the real files again, truncated to their recorded length.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ronde.files.raw_files import NullFile, RawFile

__all__ = ["FileChange", "FileHistory"]


class FileChange(NamedTuple):
    """A change that all ranks made together.

    Attributes:
        operation, path: the name of the function and the file.
        value, failure: its result, and its exception or None.
        is_new: whether the path did not exist before.
        hidden: whether it is hidden during replay until the script makes it.
    """

    operation: str
    path: str
    value: Any
    failure: Exception | None
    is_new: bool
    hidden: bool


class FileHistory:
    """Record of one rank's file changes.

    It is equal on all ranks except for `is_new`, which only rank 0 knows.

    Attributes:
        replaying: whether the script is replayed up to its checkpoint.
        trained: whether the script has made a step.
    """

    def __init__(self) -> None:
        self.replaying = False
        self.trained = False
        self._events: list[FileChange] = []
        self._read: set[str] = set()
        self._earlier: dict[tuple[str, str], collections.deque[FileChange]] = {}
        self._unborn: collections.Counter[str] = collections.Counter()
        # Files opened during replay, and the paths that they represent.
        self._open: list[tuple[NullFile, str]] = []

    def resume(self, events: Iterable[FileChange]) -> None:
        """Start replay with the changes of an earlier run."""
        self.replaying = True
        for event in events:
            self._events.append(event)
            self._earlier.setdefault((event.operation, event.path), collections.deque()).append(event)
            if event.is_new and event.hidden and event.failure is None:
                self._unborn[event.path] += 1

    def events(self) -> list[FileChange]:
        """Return all changes so far."""
        return [event._replace(hidden=event.hidden or event.path not in self._read) for event in self._events]

    def read(self, path: str) -> None:
        """Record that the script reads a file or lists a folder."""
        if not self.trained:
            self._read.update((path, *map(str, Path(path).parents)))

    def sizes(self) -> dict[str, int]:
        """Return the current sizes of files that the script has appended to."""
        appended = {event.path for event in self._events if event.operation == "open (a)"}
        return {path: os.stat(path).st_size for path in sorted(appended) if os.path.isfile(path)}

    def add(self, operation: str, path: str, value: Any, failure: Exception | None, *, is_new: bool) -> None:
        self._events.append(FileChange(operation, path, value, failure, is_new, self.trained))

    def recall(self, operation: str, path: str) -> FileChange | None:
        """Return the recorded outcome of this change; None without a further record."""
        waiting = self._earlier.get((operation, path))
        if not self.replaying or not waiting:
            return None
        event = waiting.popleft()
        if event.path in self._unborn:
            del self._unborn[event.path]
        return event

    def hides(self, path: str) -> bool:
        """Return whether the path was made later than the replay has reached."""
        return self.replaying and bool(self._unborn) and os.path.abspath(path) in self._unborn

    def without_hidden(self, folder: str, names: Iterable[str]) -> Iterator[str]:
        """Yield the names in a folder that replay has reached."""
        return (name for name in names if not self.hides(os.path.join(folder, name)))

    def stands_for(self, raw: RawFile, path: str) -> None:
        """Remember a file that was opened during replay and drops its bytes."""
        if isinstance(raw, NullFile):
            self._open.append((raw, path))

    def end_replay(self, sizes: dict[str, int], open_file: Callable[[str, int, int], int] | None) -> None:
        """End the replay at the checkpoint.

        Args:
            sizes: the sizes of files that the script had appended to; later bytes are cut off.
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
    """Redirect further writes to the real file, after the earlier run's bytes."""
    place, size = raw.tell(), os.fstat(raw.fileno()).st_size
    append = os.O_APPEND if "a" in raw.mode else 0
    opened = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | append, 0o666)
    os.ftruncate(opened, size)
    os.lseek(opened, place, os.SEEK_SET)
    os.dup2(opened, raw.fileno(), inheritable=False)
    os.close(opened)
    raw.__class__ = RawFile  # pyright: ignore[reportAttributeAccessIssue]

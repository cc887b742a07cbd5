"""What the main rank's threads are about to do to files, told in order before they do it, for other ranks."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import defaultdict

from ronde.boundary.files.meeting import Meeting
from ronde.trace.told_count import ToldCount

__all__ = ["Change", "Journal"]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A file or folder that is about to be made, changed or taken away.

    Attributes:
        place: where it is kept as it was; None when it was not there.
        whole: what lay below is kept there as well, or was not there either.
    """

    path: str
    place: str | None
    whole: bool


class Journal:
    """One rank's copy of it; the main rank's alone is written to.

    Args:
        count: of changes that have been told, for ranks of one host; None: the meeting is asked each time.
    """

    def __init__(self, meeting: Meeting, count: ToldCount | None = None) -> None:
        self._meeting = meeting
        self._count = count
        self._length = 0
        self._latest: dict[str, tuple[int, Change]] = {}
        self._inside: defaultdict[str, set[str]] = defaultdict(set)
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self._length

    def write(self, change: Change) -> None:
        with self._lock:
            number = self._length
            self._length += 1
            self._meeting.tell(_key(number), json.dumps([change.path, change.place, change.whole]))
            if self._count is not None:
                self._count.tell(self._length)
            self._keep(number, change)

    def read(self) -> None:
        """Come to know all that has been told by now; where nothing has, that is one question."""
        if self._count is not None and self._count.told() == self._length:
            return
        with self._lock:
            while (text := self._meeting.told(_key(self._length))) is not None:
                self._keep(self._length, Change(*json.loads(text)))
                self._length += 1

    def latest(self, path: str) -> tuple[int, Change] | None:
        """The last change of this path, and its number."""
        return self._latest.get(path)

    def inside(self, folder: str) -> list[str]:
        """Names in a folder that have been changed."""
        return list(self._inside.get(folder, ()))

    def _keep(self, number: int, change: Change) -> None:
        folder, _, name = change.path.rpartition("/")
        self._latest[change.path] = number, change
        self._inside[folder or "/"].add(name)


def _key(number: int) -> str:
    return f"change {number}"

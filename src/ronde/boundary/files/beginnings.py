"""What files were before threads of the script came to them, whichever rank's thread came first.

A thread of another rank is to see the files as if it alone had run. So the main rank's threads keep what they
are about to change, and say so in a journal, before they do it.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable

from ronde.boundary.files.journal import Change, Journal
from ronde.boundary.files.meeting import Meeting
from ronde.boundary.files.paths import and_above
from ronde.boundary.files.private_copy import keep, remove
from ronde.trace.told_count import ToldCount

__all__ = ["Beginnings"]


class Beginnings:
    """One rank's part in that; callers see to it that nothing mediates its use of files.

    All paths are absolute, and none lies behind a link.

    Args:
        new_place: a path for a new file of this rank, that ends in a name.
        count: see `Journal`.
    """

    def __init__(
        self, meeting: Meeting, new_place: Callable[[str], str], count: ToldCount | None = None
    ) -> None:
        self._journal = Journal(meeting, count)
        self._new_place = new_place
        self._renewed: dict[str, int] = {}
        self._standing: dict[str, int] = {}
        self._lock = threading.RLock()  # a collected file may remove itself in here

    @property
    def position(self) -> int:
        """How many changes have been told: later ones are later than what ranks do together now."""
        return len(self._journal)

    def renew(self, path: str, position: int) -> None:
        """All ranks have met over this: what was told of it, or of what lies below, by then is past."""
        if position:
            self._renewed[path] = max(position, self._renewed.get(path, 0))
        self.stand(os.path.dirname(path), position)

    def stand(self, folder: str, position: int) -> None:
        """All ranks have met, and found or made this folder: it is there, whoever made it."""
        for path in and_above(folder) if position else ():
            self._standing[path] = max(position, self._standing.get(path, 0))

    def makes(self, path: str, *, whole: bool = False) -> None:
        """The main rank's thread is about to make this, or to write to it.

        Args:
            whole: it comes as a tree.
        """
        with self._lock:
            if self._is_told(path):
                return
            if not os.path.lexists(path):
                self._journal.write(Change(path, None, whole))
            elif not os.path.isdir(path):
                self._keep(path, linked=False)

    def makes_folder(self, path: str) -> None:
        """As `makes`, for a folder and those above it that are missing."""
        missing = [above for above in and_above(path) if not os.path.lexists(above)]
        for folder in reversed(missing):
            self.makes(folder)

    def takes(self, path: str, *, moves: bool = False) -> None:
        """The main rank's thread is about to remove or replace this, or `moves` it elsewhere."""
        with self._lock:
            if os.path.lexists(path) and not self._is_told(path):
                # What is removed changes no more, so a second name keeps it; what is moved may be written to.
                self._keep(path, linked=not moves)

    def read(self) -> None:
        """Learn what the main rank's threads have told by now."""
        self._journal.read()

    def was(self, path: str) -> str | None:
        """Where it lies as it was: at its own path, or kept; None if it was not there. As far as is known."""
        floor = self._floor(path)
        for above in and_above(path):
            change = self._told(above, floor)
            if change is None or not (above == path or change.whole):
                continue
            if change.place is None:
                return None
            if not os.path.lexists(change.place):  # on another host, or after the main rank's end
                return path
            return change.place + path[len(above) :]
        return path

    def changed_inside(self, folder: str) -> dict[str, str | None]:
        """What has been changed in a folder, by name, and where it lies as it was."""
        paths = {name: os.path.join(folder, name) for name in self._journal.inside(folder)}
        told = {name: path for name, path in paths.items() if self._told(path, self._floor(path)) is not None}
        return {name: self.was(path) for name, path in told.items()}

    def _keep(self, path: str, *, linked: bool) -> None:
        place: str | None = self._new_place(os.path.basename(path))
        try:
            keep(path, place, linked=linked)
        except (OSError, shutil.Error):  # no room, or not ours to read: it is seen as it comes
            remove(place)
            place = path
        self._journal.write(Change(path, place, place != path))

    def _is_told(self, path: str) -> bool:
        floor = self._floor(path)
        changes = ((above, self._told(above, floor)) for above in and_above(path))
        return any(change is not None and (above == path or change.whole) for above, change in changes)

    def _told(self, path: str, floor: int) -> Change | None:
        number, change = self._journal.latest(path) or (-1, None)
        return change if number >= max(floor, self._standing.get(path, 0)) else None

    def _floor(self, path: str) -> int:
        """The number of the first change that counts for it."""
        return max((self._renewed.get(above, 0) for above in and_above(path)), default=0)

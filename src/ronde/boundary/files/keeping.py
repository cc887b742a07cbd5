"""The folder in which the main rank's threads keep what they are about to change.

Other ranks may be late, and look there when the main rank has left: the last to leave removes it.
"""

from __future__ import annotations

import contextlib
import os

from ronde.boundary.files.meeting import Meeting
from ronde.trace.temporary_folder import TemporaryFolders, remove_tree

__all__ = ["Keeping"]


class Keeping:
    """One rank's part in that.

    Args:
        rank, world_size: 0 keeps.
        temporary: where it is made.
    """

    def __init__(self, meeting: Meeting, *, rank: int, world_size: int, temporary: TemporaryFolders) -> None:
        self._meeting = meeting
        self._temporary = temporary
        self._rank = rank
        self._world_size = world_size
        self._folder: str | None = None
        self._count = 0
        self._turn = 0

    def place(self, name: str) -> str:
        """A path for what is kept next, ending in `name`."""
        if self._folder is None:
            self._folder = self._temporary.new()
        self._count += 1
        return os.path.join(self._folder, f"{self._count}-{name}")

    def leave(self) -> None:
        """This rank looks there no more."""
        turn, self._turn = self._turn, self._turn + 1
        folder, self._folder = self._folder, None
        if self._rank == 0 and folder is None:
            return
        with contextlib.suppress(RuntimeError):  # where ranks met is gone: so are they
            self._meeting.tell(f"left {turn} {self._rank}", folder or "")
            words = [self._meeting.told(f"left {turn} {rank}") for rank in range(self._world_size)]
            if words[0] and None not in words:
                remove_tree(words[0])

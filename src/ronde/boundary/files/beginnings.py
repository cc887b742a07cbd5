"""What a file held before threads of the script first wrote to it, whichever rank's thread came first.

A thread of another rank adds to a copy of its own. Copied from the file, it would hold what the main rank's
thread may have added by then. So that one keeps a copy, and leaves word where, before it writes.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ronde.boundary.files.meeting import Meeting

__all__ = ["Beginnings"]

_NOTHING, _SOMETHING = "nothing", "something"


class Beginnings:
    """One rank's part in that; callers see to it that nothing mediates its use of files.

    Args:
        new_place: a path for a new file of this rank, that ends in a name.
    """

    def __init__(self, meeting: Meeting, new_place: Callable[[str], str]) -> None:
        self._meeting = meeting
        self._new_place = new_place
        self._changes: Counter[str] = Counter()
        self._saved: set[str] = set()

    def renew(self, located: str) -> None:
        """All ranks have met over this file or folder: from here on it begins anew."""
        self._changes[located] += 1

    def save(self, located: str, *, content: bool = True, parents: bool = False) -> None:
        """The main rank's thread is about to make, change or remove this.

        Args:
            content: what a file holds may be needed.
            parents: folders above that are missing are made along with it.
        """
        key = self._key(located)
        if key in self._saved:
            return
        self._saved.add(key)
        word = _SOMETHING if os.path.lexists(located) else _NOTHING
        above = os.path.dirname(located)
        if parents and not os.path.lexists(above):
            self.save(above, parents=True)
        if content and os.path.isfile(located):
            word = self._new_place(os.path.basename(located))
            shutil.copyfile(located, word)
        self._meeting.tell(key, word)

    def of(self, located: str, place: str) -> None:
        """Put what the file held into `place`; nothing where it was not there."""
        key = self._key(located)
        word = self._meeting.told(key)
        if word is None:
            if os.path.isfile(located):
                shutil.copyfile(located, place)
            # The main rank leaves word before it writes: where none is left by now, it has not written.
            word = self._meeting.told(key)
            if word is None:
                return
        if word == _NOTHING and os.path.exists(place):
            os.unlink(place)
        elif os.path.isfile(word):  # on another host it is not
            shutil.copyfile(word, place)

    def was_there(self, located: str) -> bool:
        """Whether this was there before threads came, or is there and none has changed it."""
        there = os.path.lexists(located)
        # Asked afterwards, because the main rank leaves word first: without any, it had made nothing of this.
        word = self._meeting.told(self._key(located))
        if word is not None:
            return word != _NOTHING
        return there and not self.made_around(located)

    def made_around(self, located: str) -> bool:
        """Whether the main rank's threads have made a folder above it."""
        return any(self._made(path) for path in _and_above(os.path.dirname(located)))

    def made_inside(self, located: str, names: Iterable[str]) -> set[str]:
        """Which of these entries of a folder the main rank's threads have made."""
        if self._made(located) or self.made_around(located):
            return set(names)
        return {name for name in names if self._made(os.path.join(located, name))}

    def _made(self, located: str) -> bool:
        return self._meeting.told(self._key(located)) == _NOTHING

    def _key(self, located: str) -> str:
        """A name for the file and for how often ranks have met over it, or over folders above."""
        return f"{sum(self._changes[path] for path in _and_above(located))} {located}"


def _and_above(path: str) -> Iterator[str]:
    yield path
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        yield path

"""Reversible replacement of attributes: everything that the boundary puts in the way of a script."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """A register of replaced attributes, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._before: dict[tuple[int, str], tuple[Any, object]] = {}

    def set(self, owner: Any, name: str, replacement: object) -> Any:
        """Replace `owner.name` and return what the caller would have found there before.

        A class's own entry is remembered raw (a `staticmethod` comes back as one), and an inherited
        attribute is restored by deleting the replacement.
        """
        original = getattr(owner, name)
        before = vars(owner).get(name, _ABSENT)
        self._before.setdefault((id(owner), name), (owner, before))
        self.undo(partial(_put_back, owner, name, before))
        setattr(owner, name, replacement)
        return original

    def add(self, owner: Any, name: str, value: object) -> None:
        """Give `owner` an attribute that it does not have."""
        self.undo(partial(_put_back, owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self, action: Callable[[], None]) -> None:
        """Remember how to undo a replacement that is made by other means."""
        self._undo.append(action)

    @contextmanager
    def lifted(self, owners: Collection[Any]) -> Iterator[None]:
        """Inside, these owners have their attributes as they were before any was replaced."""
        theirs = [
            (owner, name, before)
            for (_, name), (owner, before) in self._before.items()
            if any(owner is each for each in owners)
        ]
        # Lifted already where this is called inside.
        now = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in theirs]
        for owner, name, before in theirs:
            _put_back(owner, name, before)
        try:
            yield
        finally:
            for owner, name, replacement in now:
                _put_back(owner, name, replacement)

    def restore(self) -> None:
        """Put everything back, last replacement first; the register is empty afterwards."""
        while self._undo:
            self._undo.pop()()
        self._before.clear()


def _put_back(owner: Any, name: str, before: object) -> None:
    if before is _ABSENT:
        if name in vars(owner):
            delattr(owner, name)
    else:
        setattr(owner, name, before)

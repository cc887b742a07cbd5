"""Named blocks of `multiprocessing.shared_memory`: a host has each name once, and every rank needs a block.

The first rank of a host has the name that the script gave. Another rank's block has a name of its own, which
`.name` tells: a child that is given it finds the block, forked (then it knows all this) or spawned.
A block that another program has made is one for all ranks, under the name that it has.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from ronde.boundary.patches import Patches

__all__ = ["SharedBlocks"]

_FOLDER = "/dev/shm"
_UNNAMED = "psm_"  # how Python's own names begin: those are new on every rank


class SharedBlocks:
    """Replaces how blocks are made, attached to and removed.

    Nothing is agreed between ranks, whose children and threads may make blocks. Ranks know by a file for each
    name whether the block of that name is the first rank's, or another program's.

    Args:
        first: whether this rank is the first of its host.
        suffix: what is added to names on another rank, unlike any other's.
        marks: the beginning of these files' paths, the same on all ranks of the host.
        note: takes what the user should know; it is said of the first block.
    """

    def __init__(self, *, first: bool, suffix: str, marks: str, note: Callable[[str], None]) -> None:
        self._first = first
        self._suffix = suffix
        self._marks = marks
        self._note = note
        self._noted = False
        self._removed: set[str] = set()  # of others' blocks, those that the script has removed

    def install(self, patches: Patches) -> None:
        make, remove = (self._first_make, self._first_remove) if self._first else (self._make, self._remove)
        patches.set(SharedMemory, "__init__", self._making(SharedMemory.__init__, make))
        patches.set(SharedMemory, "unlink", self._removing(SharedMemory.unlink, remove))

    @staticmethod
    def _making(plain: Callable[..., None], make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def init(
            block: Any, name: str | None = None, create: bool = False, *rest: Any, **options: Any
        ) -> None:
            def attempt(name: str) -> None:
                plain(block, name, create, *rest, **options)

            if not name or not isinstance(name, str) or name.startswith(_UNNAMED):
                plain(block, name, create, *rest, **options)
            else:
                make(attempt, name, create)

        return init

    @staticmethod
    def _removing(plain: Callable[..., None], remove: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def unlink(block: Any) -> None:
            remove(lambda: plain(block), (block._name or "").removeprefix("/"))  # None: its making has failed

        return unlink

    def _first_make(self, attempt: Callable[[str], None], name: str, create: bool) -> None:
        mark = self._mark(name)
        if not create or os.path.exists(mark) or _number(name) is not None:
            attempt(name)
            return
        # Before the block is there, so that no rank takes it for another program's.
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o644))
        try:
            attempt(name)
        except BaseException:
            _discard(mark)
            raise
        if self._noted:  # a script may make one for every batch
            return
        self._noted = True
        self._note(
            f"the shared memory block {name!r} is the main rank's: every other rank makes one under a name "
            f"of its own, which .name tells"
        )

    def _first_remove(self, attempt: Callable[[], None], name: str) -> None:
        attempt()
        _discard(self._mark(name))

    def _make(self, attempt: Callable[[str], None], name: str, create: bool) -> None:
        own = name if name.endswith(self._suffix) else name + self._suffix
        if create:
            if self._is_others(name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"/{name}")
            attempt(own)
            return
        try:
            attempt(own)
        except FileNotFoundError:
            if own == name or not self._is_others(name):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"/{name}") from None
            attempt(name)

    def _remove(self, attempt: Callable[[], None], name: str) -> None:
        if name.endswith(self._suffix) or name.startswith(_UNNAMED):
            attempt()
        else:  # the first rank does so, and finds it there
            self._removed.add(name)

    def _is_others(self, name: str) -> bool:
        """Whether a block of this name is there, and no rank has made it."""
        if name in self._removed:
            return False
        before = _number(name)
        # The first rank marks its block before it is there, and until it is there no more.
        marked = os.path.exists(self._mark(name))
        return before is not None and not marked and _number(name) == before

    def _mark(self, name: str) -> str:
        return self._marks + hashlib.sha256(name.lstrip("/").encode()).hexdigest()[:16]


def _number(name: str) -> int | None:
    """Tells a block from others; None where there is none of this name."""
    try:
        return os.stat(os.path.join(_FOLDER, name.lstrip("/"))).st_ino
    except FileNotFoundError:
        return None


def _discard(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

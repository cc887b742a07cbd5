"""The folder of a table's rows on disk: locked as long as its maker lives, so that others know what is stale.

Only the raw calls of `posix` are used: under `ronde run` those of `os` are a script's, which all ranks make
together, while each rank has a folder of its own, and lets it go when its table goes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import posix
import secrets
import stat
import tempfile

from ronde.errors import RondeError

__all__ = ["ColdFolder", "remove_stale", "remove_tree"]

_PREFIX = "ronde-cold-"
_LOCK = "lock"


@dataclasses.dataclass(frozen=True, slots=True)
class ColdFolder:
    """One that this process has made and locked.

    Attributes:
        path: it.
        lock: the descriptor by which it is locked.
        process: who made it; a process that is forked from it leaves it alone.
    """

    path: str
    lock: int
    process: int

    @classmethod
    def make(cls, above: str | None) -> ColdFolder:
        """Make one, and remove those whose makers are dead.

        Args:
            above: where; None is the folder for temporary files.

        Raises:
            RondeError: it cannot be made.
        """
        above = tempfile.gettempdir() if above is None else above
        try:
            remove_stale(above)
            path = f"{above}/{_PREFIX}{secrets.token_hex(8)}"
            posix.mkdir(path, 0o700)
            # Locked before it has the name by which others look for it.
            lock = posix.open(f"{path}/.{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(OSError):  # a file system without locks: then nobody takes it for stale
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                posix.rename(f"{path}/.{_LOCK}", f"{path}/{_LOCK}")
        except OSError as error:
            raise RondeError(
                f"no folder for rows of a table can be made in {above} ({error.strerror}): give "
                "OnDisk(directory=) another"
            ) from None
        return cls(path, lock, os.getpid())

    def remove(self) -> None:
        """Remove it with all that it holds, if this process has made it."""
        if os.getpid() == self.process:
            remove_tree(self.path)
            with contextlib.suppress(OSError):
                posix.close(self.lock)


def remove_tree(folder: str) -> None:
    """Remove a folder with all that it holds, as far as that can be done."""
    with contextlib.suppress(OSError):
        for name in posix.listdir(folder):
            path = f"{folder}/{name}"
            if stat.S_ISDIR(posix.lstat(path).st_mode):
                remove_tree(path)
            else:
                posix.unlink(path)
        posix.rmdir(folder)


def remove_stale(above: str) -> None:
    """Remove those in a folder whose makers are dead.

    Raises:
        OSError: the folder cannot be read.
    """
    for name in posix.listdir(above):
        if name.startswith(_PREFIX):
            with contextlib.suppress(OSError):  # another's, locked, or gone meanwhile
                lock = posix.open(f"{above}/{name}/{_LOCK}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(f"{above}/{name}")
                finally:
                    posix.close(lock)

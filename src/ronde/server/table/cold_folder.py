"""The folder of a table's rows on disk. A lock held by its process tells others whether it is stale.

Only `posix` calls are used: under `ronde run` the functions of `os` are patched for the script and are
collective, while each rank makes and removes a folder of its own.
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
    """A folder that this process has made and locked.

    Attributes:
        path: path of the folder.
        lock: descriptor of the locked file.
        process: pid of the maker; a forked process leaves the folder alone.
    """

    path: str
    lock: int
    process: int

    @classmethod
    def make(cls, above: str | None) -> ColdFolder:
        """Make a folder, and remove stale ones of dead processes.

        Args:
            above: parent folder; None: the folder for temporary files.

        Raises:
            RondeError: the folder cannot be made.
        """
        above = tempfile.gettempdir() if above is None else above
        try:
            remove_stale(above)
            path = f"{above}/{_PREFIX}{secrets.token_hex(8)}"
            posix.mkdir(path, 0o700)
            # Lock the file before it gets the name that others look for.
            lock = posix.open(f"{path}/.{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(OSError):  # without file locks, no process treats the folder as stale
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                posix.rename(f"{path}/.{_LOCK}", f"{path}/{_LOCK}")
        except OSError as error:
            raise RondeError(
                f"no folder for rows of a table can be made in {above} ({error.strerror}): give "
                "OnDisk(directory=) another [R468]"
            ) from None
        return cls(path, lock, os.getpid())

    def remove(self) -> None:
        """Remove the folder and its content, if this process made it."""
        if os.getpid() == self.process:
            remove_tree(self.path)
            with contextlib.suppress(OSError):
                posix.close(self.lock)


def remove_tree(folder: str) -> None:
    """Remove a folder and its content, ignoring errors."""
    with contextlib.suppress(OSError):
        for name in posix.listdir(folder):
            path = f"{folder}/{name}"
            if stat.S_ISDIR(posix.lstat(path).st_mode):
                remove_tree(path)
            else:
                posix.unlink(path)
        posix.rmdir(folder)


def remove_stale(above: str) -> None:
    """Remove cold-row folders of processes that no longer exist.

    Raises:
        OSError: the folder cannot be read.
    """
    for name in posix.listdir(above):
        if name.startswith(_PREFIX):
            with contextlib.suppress(OSError):  # another user's, in use, or removed meanwhile
                lock = posix.open(f"{above}/{name}/{_LOCK}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(f"{above}/{name}")
                finally:
                    posix.close(lock)

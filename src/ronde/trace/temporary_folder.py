"""Folders of a run among the temporary files: `ronde-RUN_ID-...`, locked as long as their maker lives.

The lock ends with the process, however that ends. So a later run can recognise abandoned folders.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator

from ronde.trace.run_directory import RUN_ID

__all__ = ["TemporaryFolder", "TemporaryFolders", "open_up", "remove_dead", "remove_tree", "temporary_folder"]

_NAME = re.compile(rf"ronde-({RUN_ID.pattern})-\w+")


@dataclasses.dataclass(frozen=True, slots=True)
class TemporaryFolder:
    """A temporary folder that this process has made and locked."""

    path: str
    lock: int

    @classmethod
    def hold(cls, run_id: str) -> TemporaryFolder:
        """Make a folder.

        Raises:
            OSError: the disk of temporary files is full.
        """
        while True:
            path = tempfile.mkdtemp(prefix=f"ronde-{run_id}-")
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another run is checking whether it is locked
                os.close(lock)
                continue
            except OSError:  # a file system without locks, where no run removes folders of others
                return cls(path, lock)
            if os.path.isdir(path):
                return cls(path, lock)
            os.close(lock)  # another run has locked it first, and removed it

    def remove(self) -> None:
        """Remove the folder with its contents."""
        remove_tree(self.path)
        os.close(self.lock)


@contextlib.contextmanager
def temporary_folder(run_id: str) -> Iterator[str]:
    """Hold a folder, as a context that gives its path; "" on a full disk."""
    try:
        folder = TemporaryFolder.hold(run_id)
    except OSError:
        yield ""
        return
    try:
        yield folder.path
    finally:
        folder.remove()


@dataclasses.dataclass(frozen=True, slots=True)
class TemporaryFolders:
    """Factory of a rank's temporary folders.

    Attributes:
        given: folder of the launcher, which it removes when all ranks are gone; "" without one.
        run_id: id of the run, "" without one.
    """

    given: str = ""
    run_id: str = ""

    @property
    def above(self) -> str | None:
        """Parent folder of temporary files; None for `tempfile`'s default."""
        return self.given if self.given and os.path.isdir(self.given) else None

    def new(self) -> str:
        """Make a folder; one outside `given` is locked until this process ends."""
        if self.above is None and self.run_id:
            return TemporaryFolder.hold(self.run_id).path
        return tempfile.mkdtemp(prefix="ronde-", dir=self.above)


def remove_dead(lives: Callable[[str], bool]) -> None:
    """Remove this user's folders of dead makers.

    Args:
        lives: whether a run of this id has processes.
    """
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is not None:
                with contextlib.suppress(OSError):  # gone meanwhile
                    _remove_if_dead(entry, lambda run_id=match[1]: lives(run_id))


def _remove_if_dead(entry: os.DirEntry[str], lives: Callable[[], bool]) -> None:
    if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
        return
    lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if its maker lives
        if not lives():
            remove_tree(entry.path)
    finally:
        os.close(lock)


def remove_tree(folder: str) -> None:
    """Remove a folder with its contents, as far as possible."""
    open_up(folder)
    shutil.rmtree(folder, ignore_errors=True)


def open_up(folder: str) -> None:
    """Make the contents removable, despite permissions that the script has set."""
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
    for above, names, _ in os.walk(folder):
        for path in (os.path.join(above, name) for name in names):
            with contextlib.suppress(OSError):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)

"""What of a server survives it: its log and snapshots, and how it comes back from them.

A snapshot is written by a child that `fork` makes: it has the state as it was at a boundary between changes,
while its parent goes on. It only writes files and ends by `_exit`; locks of other threads, which are
ZeroMQ's and none of the interpreter's, are never asked for. It first closes what it inherited, or the sockets
of a server that is killed meanwhile would stay in use; and it dies with its parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NoReturn

from ronde.errors import RondeError
from ronde.launch.linux_process import bind_to_parent, load_prctl
from ronde.server.journal import Journal, Sync, open_directory, read_records, segments
from ronde.server.record import Record
from ronde.server.shard import Shard
from ronde.server.snapshot import (
    commit,
    name_of,
    read_snapshot,
    remove_unfinished,
    set_aside,
    snapshots,
    write_snapshot,
)

__all__ = ["SNAPSHOT_BYTES", "Storage", "forget", "recover"]

SNAPSHOT_BYTES = 64 << 20
"""Changes of fewer bytes than this, or than the state, make no snapshot."""

_KEPT = 2
_LOCK_S = 3.0  # a killed server's snapshot has it for a moment longer


class Storage:
    """The log and snapshots of one server.

    Args:
        directory: its own.
        shard: its state, which must be empty; what is in the directory is loaded.
        durability: whether every change is written, or snapshots alone.
        sync: when changes must be on the disk, see `ronde.server.journal`.
        least: bytes of changes after which a snapshot is made, if the state is not larger.
        keep: how many snapshots are kept, with their logs.
        tell: writes to the server's own log.

    Attributes:
        pause: seconds that the last snapshot held the server up.

    Raises:
        RondeError: what is in the directory does not make a state, or another server uses it.
    """

    def __init__(
        self,
        directory: Path,
        shard: Shard,
        *,
        durability: Literal["log", "snapshot"] = "log",
        sync: Sync = "never",
        least: int = SNAPSHOT_BYTES,
        keep: int = _KEPT,
        tell: Callable[[str], object] = lambda words: None,
    ) -> None:
        self._directory, self._shard, self._tell = directory, shard, tell
        self._least, self._keep = least, keep
        open_directory(directory)
        self._lock = _locked(directory)
        remove_unfinished(directory)
        begun = time.monotonic()
        self._records, replayed = recover(directory, shard, tell)
        if self._records:
            seconds = time.monotonic() - begun
            tell(f"{self._records} changes are back in {seconds:.2f} s, {replayed} of them from the log")
        self._journal = Journal(directory, self._records, sync, tell) if durability == "log" else None
        begin = self._records - replayed
        snapshot = directory / name_of(begin)
        # Bytes of changes since the last snapshot was begun, and of that.
        self._grown = sum(path.stat().st_size for first, path in segments(directory) if first >= begin)
        self._state_bytes = snapshot.stat().st_size if snapshot.exists() else 0
        self._child: tuple[int, int] | None = None  # its process, and the number of changes that it writes
        self._library = load_prctl()
        self.pause = 0.0

    def append(self, record: Record) -> None:
        """Write a change before it is made.

        Raises:
            RondeError: it cannot be written.
        """
        if self._journal is not None:
            self._journal.append(record)
        self._records += 1
        self._grown += sum(array.nbytes for array in record.arrays) + 256  # what stands around them, about

    def tick(self) -> None:
        """Make a snapshot when it is due, at a boundary between changes."""
        if self._journal is not None:
            self._journal.tick()
        if self._child is not None:
            self._look_at_child(*self._child)
        elif self._grown >= max(self._least, self._state_bytes):
            self.begin_snapshot()

    def begin_snapshot(self) -> None:
        """Have a child write the state as it is now."""
        begun = time.monotonic()
        self._grown = 0
        try:
            if self._journal is not None:
                self._journal.begin_segment()
            self._shard.freeze()
            with warnings.catch_warnings():  # newer Pythons warn of ZeroMQ's threads
                warnings.simplefilter("ignore", DeprecationWarning)
                parent = os.getpid()
                process = os.fork()
        except (OSError, RondeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._tell(f"no snapshot could be begun: {why}; the log goes on")
            self._shard.thaw()
            return
        if not process:
            self._write_and_exit(parent)
        self._child = process, self._records
        self.pause = time.monotonic() - begun

    def wait(self) -> None:
        """Return when no snapshot is being written."""
        while self._child is not None:
            self._look_at_child(*self._child, wait=True)

    def close(self) -> None:
        """The server ends: without a log, its last changes go into a snapshot."""
        try:
            self._close()
        finally:
            os.close(self._lock)

    def _close(self) -> None:
        if self._journal is None:
            self.wait()
            if self._grown:
                with contextlib.suppress(OSError):
                    write_snapshot(self._directory, self._records, self._shard.state())
                    commit(self._directory, self._records, self._keep)
            return
        if self._child is not None:
            os.kill(self._child[0], signal.SIGKILL)
            os.waitpid(self._child[0], 0)
        self._journal.close()

    def _write_and_exit(self, parent: int) -> NoReturn:
        code = 255
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            bind_to_parent(self._library, parent)
            write_snapshot(self._directory, self._records, self._shard.state())
            code = 0
        except OSError as error:
            code = error.errno or 255
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _look_at_child(self, process: int, records: int, *, wait: bool = False) -> None:
        ended, status = os.waitpid(process, 0 if wait else os.WNOHANG)
        if not ended:
            return
        self._child = None
        self._shard.thaw()
        code = os.waitstatus_to_exitcode(status)
        try:
            if code:
                raise OSError(code, os.strerror(code) if 0 < code < 255 else f"its process ended with {code}")
            commit(self._directory, records, self._keep)
            self._state_bytes = (self._directory / name_of(records)).stat().st_size
        except OSError as error:
            remove_unfinished(self._directory)
            self._tell(f"a snapshot could not be written ({error.strerror}); the log goes on, and grows")
            return
        self._tell(
            f"snapshot of {records} changes, {self._state_bytes / 1e6:.1f} MB; it held this server up for "
            f"{self.pause * 1e3:.1f} ms"
        )


def recover(
    directory: Path, shard: Shard, tell: Callable[[str], object], *, mend: bool = True
) -> tuple[int, int]:
    """Give an empty shard the state that a directory has, and return its changes and those of the log.

    Raises:
        RondeError: what is there does not make a state.
    """
    found = snapshots(directory, tell)
    damaged: list[int] = []
    for each in found:
        try:
            state = read_snapshot(directory, each)
        except ValueError as error:
            tell(f"{error}; the snapshot before it is taken, with its log")
            damaged.append(each)
            continue
        shard.load(*state)
        break
    if damaged == found:
        logs = segments(directory)
        # Without snapshots the log begins with nothing, unless the run has begun with a snapshot.
        if found and (0 in found or not logs or logs[0][0]):
            raise RondeError(
                f"no snapshot in {directory} is whole: restore one, or begin with an empty directory"
            )
        begun = 0
    else:
        begun = found[len(damaged)]
    if mend:
        for each in damaged:
            set_aside(directory, each)
    records = begun
    for record in read_records(directory, begun, tell, mend=mend):
        with contextlib.suppress(Exception):  # it failed when it was made, and does again
            shard.apply(record)
        records += 1
    return records, records - begun


def _locked(directory: Path) -> int:
    """Keep other servers out of a directory until the descriptor that this returns is closed.

    Raises:
        RondeError: one uses it; it cannot be written to.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise RondeError(f"{directory}, for the log of a server, cannot be used: {error.strerror}") from None
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise RondeError(
                    f"another server uses {directory}: end it, or give each server a directory of its own"
                ) from None
            time.sleep(0.05)
        except OSError:
            return descriptor  # a file system that knows no locks
        else:
            return descriptor


def forget(directory: Path) -> None:
    """Remove what an earlier run's server has left; nothing else in the directory is touched."""
    if directory.is_dir():
        for pattern in ("log-*", "snapshot-*", "manifest.json*"):
            for path in directory.glob(pattern):
                path.unlink()

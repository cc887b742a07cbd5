"""Durability of a server: its log and snapshots, and recovery from them.

A forked child writes a snapshot: it has the state at a boundary between changes, while its parent goes on.
The child only writes files and ends by `_exit`, so it never takes a lock of another thread (only ZeroMQ has
any). It first closes inherited descriptors, or the sockets of a killed server would stay in use; and it dies
with its parent.
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
from ronde.server.journal import LogWriter, Sync, open_directory, read_records, segments
from ronde.server.record import Record
from ronde.server.shard import ServerShard
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
"""Changes of fewer bytes than this, or than the state, trigger no snapshot."""

_KEPT = 2
_LOCK_S = 3.0  # a killed server's snapshot process holds the lock a moment longer


class Storage:
    """The log and snapshots of one server.

    Args:
        directory: the server's own directory.
        shard: the state, empty; the directory's content is loaded into it.
        durability: whether every change is logged, or only snapshots are written.
        sync: durability of the log, see `ronde.server.journal`.
        least: bytes of changes after which a snapshot is made, if the state is not larger.
        keep: number of snapshots to keep, with their logs.
        tell: function that writes a line to the server's own log.

    Attributes:
        pause: seconds for which the last snapshot blocked the server.

    Raises:
        RondeError: the directory's content is damaged, or another server uses it.
    """

    def __init__(
        self,
        directory: Path,
        shard: ServerShard,
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
        self._journal = LogWriter(directory, self._records, sync, tell) if durability == "log" else None
        begin = self._records - replayed
        snapshot = directory / name_of(begin)
        # Bytes of changes since the last snapshot was begun, and bytes of that snapshot.
        self._grown = sum(path.stat().st_size for first, path in segments(directory) if first >= begin)
        self._state_bytes = snapshot.stat().st_size if snapshot.exists() else 0
        self._child: tuple[int, int] | None = None  # pid, and number of changes in its snapshot
        self._library = load_prctl()
        self.pause = 0.0

    def append(self, record: Record) -> None:
        """Log a change before it is applied.

        Raises:
            RondeError: the log cannot be written.
        """
        if self._journal is not None:
            self._journal.append(record)
        self._records += 1
        self._grown += sum(array.nbytes for array in record.arrays) + 256  # plus the metadata, roughly

    def tick(self) -> None:
        """Make a snapshot if one is due, at a boundary between changes."""
        if self._journal is not None:
            self._journal.tick()
        if self._child is not None:
            self._look_at_child(*self._child)
        elif self._grown >= max(self._least, self._state_bytes):
            self.begin_snapshot()

    def begin_snapshot(self) -> None:
        """Fork a child that writes a snapshot of the present state."""
        begun = time.monotonic()
        self._grown = 0
        try:
            if self._journal is not None:
                self._journal.begin_segment()
            self._shard.freeze()
            with warnings.catch_warnings():  # newer Pythons warn about a fork with ZeroMQ's threads
                warnings.simplefilter("ignore", DeprecationWarning)
                parent = os.getpid()
                process = os.fork()
        except (OSError, RondeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._tell(f"no snapshot could be begun: {why}; the log continues [R410]")
            self._shard.thaw()
            return
        if not process:
            self._write_and_exit(parent)
        self._child = process, self._records
        self.pause = time.monotonic() - begun

    def wait(self) -> None:
        """Wait until no snapshot is being written."""
        while self._child is not None:
            self._look_at_child(*self._child, wait=True)

    def close(self) -> None:
        """Close the storage; without a log, write a last snapshot."""
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
            self._tell(
                f"a snapshot could not be written ({error.strerror}); the log continues, and grows [R410]"
            )
            return
        self._tell(
            f"snapshot of {records} changes, {self._state_bytes / 1e6:.1f} MB; it held this server up for "
            f"{self.pause * 1e3:.1f} ms"
        )


def recover(
    directory: Path, shard: ServerShard, tell: Callable[[str], object], *, mend: bool = True
) -> tuple[int, int]:
    """Load a directory's state into an empty shard. Returns the number of changes, and the number replayed
    from the log.

    Raises:
        RondeError: the directory's content is damaged.
    """
    found = snapshots(directory, tell)
    damaged: list[int] = []
    for each in found:
        try:
            state = read_snapshot(directory, each)
        except ValueError as error:
            tell(f"{error}; the snapshot before it is used, with its log [R409]")
            damaged.append(each)
            continue
        shard.load(*state)
        break
    if damaged == found:
        logs = segments(directory)
        # Without snapshots the log starts at change 0, unless the run started from a snapshot.
        if found and (0 in found or not logs or logs[0][0]):
            raise RondeError(
                f"no snapshot in {directory} is whole: restore one, or begin with an empty directory [R408]"
            )
        begun = 0
    else:
        begun = found[len(damaged)]
    if mend:
        for each in damaged:
            set_aside(directory, each)
    records = begun
    for record in read_records(directory, begun, tell, mend=mend):
        with contextlib.suppress(Exception):  # it failed when first applied, and fails again
            shard.apply(record)
        records += 1
    return records, records - begun


def _locked(directory: Path) -> int:
    """Lock a directory against other servers; returns the descriptor that holds the lock.

    Raises:
        RondeError: another server holds the lock, or the directory is not writable.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise RondeError(
            f"{directory}, for the log of a server, cannot be used: {error.strerror} [R434]"
        ) from None
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise RondeError(
                    f"another server uses {directory}: end it, or give each server a directory of its "
                    "own [R434]"
                ) from None
            time.sleep(0.05)
        except OSError:
            return descriptor  # a file system without locks
        else:
            return descriptor


def forget(directory: Path) -> None:
    """Remove an earlier run's log and snapshots; other files stay."""
    if directory.is_dir():
        for pattern in ("log-*", "snapshot-*", "manifest.json*"):
            for path in directory.glob(pattern):
                path.unlink()

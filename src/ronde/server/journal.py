"""A server's log: changes in order, in files named by their first change's number.

An appended change is in the system's cache: it survives the process, not the machine. `sync="always"` writes
it to disk before the change is answered, `"group"` within about a second, `"never"` when the system does.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from ronde.errors import RondeError
from ronde.server.array_codec import Array
from ronde.server.framing import DamagedFrame, LogFrame, frame, frames_of, has_frame, write
from ronde.server.record import Record
from ronde.server.transport.wire import Opcode
from ronde.trace.whole_file import sync

__all__ = ["LogWriter", "Sync", "open_directory", "read_records", "segments"]

Sync = Literal["always", "group", "never"]

_NAME = re.compile(r"log-(\d{12})")
_GROUP_S = 1.0


class LogWriter:
    """A writer that appends changes to the log.

    Args:
        directory: the server's directory.
        records: number of changes already in the log.
        sync: durability of an append, "always", "group" or "never".
        tell: function that writes a line to the server's own log.

    Attributes:
        records: number of changes in the log.
        nbytes: bytes that this object wrote.
    """

    def __init__(self, directory: Path, records: int, sync: Sync, tell: Callable[[str], object]) -> None:
        self.records = records
        self.nbytes = 0
        self._directory = directory
        self._sync: Sync = sync
        self._tell = tell
        self._is_full = False
        self._unwritten_since: float | None = None
        self._descriptor = -1
        self._end = 0
        known = segments(directory)
        self._open(known[-1][1] if known else directory / _name(records))

    def append(self, record: Record) -> None:
        """Write a change; on return it is as durable as `sync` says.

        Raises:
            RondeError: the directory is full or not writable; the log is unchanged.
        """
        try:
            self._mend()
            nbytes = write(self._descriptor, frame(*_written(record)))
            if self._sync == "always":
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failed(error) from None
        if self._is_full:
            self._is_full = False
            self._tell(f"changes are written to {self._directory} again")
        self._end += nbytes
        self.nbytes += nbytes
        self.records += 1
        if self._sync == "group" and self._unwritten_since is None:
            self._unwritten_since = time.monotonic()

    def tick(self) -> None:
        """Sync to disk once unsynced changes are a second old."""
        since = self._unwritten_since
        if since is not None and time.monotonic() - since >= _GROUP_S:
            os.fdatasync(self._descriptor)
            self._unwritten_since = None

    def begin_segment(self) -> None:
        """Begin a new file for the changes that follow.

        Raises:
            OSError: the file cannot be made; the log continues in the old one.
        """
        before = self._descriptor
        if self._sync != "never":
            os.fdatasync(before)
        self._open(self._directory / _name(self.records))
        os.close(before)

    def close(self) -> None:
        if self._sync != "never":
            os.fdatasync(self._descriptor)
        os.close(self._descriptor)

    def _open(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._descriptor).st_size
        self._unwritten_since = None
        if self._sync != "never":
            sync(self._directory)

    def _mend(self) -> None:
        """Cut off the remains of a failed append."""
        if os.fstat(self._descriptor).st_size != self._end:
            os.ftruncate(self._descriptor, self._end)

    def _failed(self, error: OSError) -> RondeError:
        with contextlib.suppress(OSError):  # it is tried again before the next one is written
            self._mend()
        why = RondeError(
            f"nothing was changed: {self._directory}, where changes are logged before they are made, cannot "
            f"be written ({error.strerror}); free some space there, or give the run a --run-dir on a larger "
            "disk [R405]"
        )
        if not self._is_full:
            self._tell(str(why))
            self._is_full = True
        return why


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return the files of a log, each with the number of changes before it."""
    found = ((_NAME.fullmatch(entry.name), entry) for entry in directory.iterdir())
    return sorted((int(match[1]), entry) for match, entry in found if match is not None)


def read_records(
    directory: Path, begin: int, tell: Callable[[str], object], *, mend: bool = True
) -> Iterator[Record]:
    """Yield the changes from number `begin` on. A torn last change is truncated if `mend`.

    Raises:
        RondeError: changes are missing or damaged.
    """
    files = [(first, path) for first, path in segments(directory) if first >= begin]
    for place, (first, path) in enumerate(files):
        if first != begin:
            raise RondeError(
                f"the log in {directory} has no changes {begin} to {first - 1}: {path.name} is next [R408]"
            )
        try:
            for each in frames_of(path):
                yield _record(each)
                begin += 1
        except DamagedFrame as damage:
            if place < len(files) - 1 or has_frame(path, damage.offset):
                raise RondeError(
                    f"{path} is damaged at byte {damage.offset} ({damage}), and changes follow that were "
                    "confirmed: restore the file, or begin with an empty directory [R408]"
                ) from None
            tell(
                f"{path.name}: the last change is incomplete ({damage}) and was not confirmed to a worker; "
                "it was removed [R407]"
            )
            if mend:
                os.truncate(path, damage.offset)


def open_directory(directory: Path) -> Path:
    """Create a directory for this user alone, and return it.

    Raises:
        RondeError: the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RondeError(
            f"{directory}, for the log of a server, cannot be made: {error.strerror} [R405]"
        ) from None
    return directory


def _name(records: int) -> str:
    return f"log-{records:012d}"


def _written(record: Record) -> tuple[list[object], Sequence[Array]]:
    told = [int(record.operation), record.meta, list(record.marks.items()), list(record.clocks.items())]
    return told, record.arrays


def _record(read: LogFrame) -> Record:
    operation, meta, marks, clocks = read.meta
    return Record(
        Opcode(operation),
        meta,
        read.arrays,
        dict(marks),
        dict(clocks),
    )

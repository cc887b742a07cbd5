"""Snapshot files of a server's state, and the manifest that lists them.

A snapshot is a file of checksummed sections. `manifest.json` lists the last finished snapshots, newest first,
each with the file of the log that follows it. It is replaced atomically by a rename.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ronde.server.array_codec import Array
from ronde.server.framing import DamagedFrame, frame, frames_of, write
from ronde.server.journal import segments
from ronde.server.record import Answer, StateOfPart
from ronde.trace.whole_file import sync

__all__ = [
    "commit",
    "name_of",
    "read_snapshot",
    "remove_unfinished",
    "set_aside",
    "snapshots",
    "write_snapshot",
]

_VERSION = 1
_MANIFEST = "manifest.json"
_NAME = re.compile(r"snapshot-(\d{12})")
_UNFINISHED = ".unfinished"


def name_of(records: int) -> str:
    """Return the file name of the snapshot after `records` changes."""
    return f"snapshot-{records:012d}"


def write_snapshot(directory: Path, records: int, state: StateOfPart) -> int:
    """Write and sync a state as an unfinished snapshot; return its bytes.

    Raises:
        OSError: the write failed; the partial file is removed.
    """
    told, arrays = state
    path = directory / (name_of(records) + _UNFINISHED)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        head = {"version": _VERSION, "records": records, "arrays": len(arrays), "state": told}
        nbytes = write(descriptor, frame(head))
        for array in arrays:
            nbytes += write(descriptor, frame(None, [array() if callable(array) else array]))
        os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return nbytes


def commit(directory: Path, records: int, keep: int) -> None:
    """Make a written snapshot the newest, and remove all but the last `keep`.

    Raises:
        OSError: the commit failed; the earlier snapshots remain valid.
    """
    path = directory / name_of(records)
    os.replace(path.with_name(path.name + _UNFINISHED), path)
    kept = [records, *(each for each in snapshots(directory) if each != records)][:keep]
    told = {
        "version": _VERSION,
        "snapshots": [{"file": name_of(each), "records": each, "log": f"log-{each:012d}"} for each in kept],
    }
    unfinished = directory / (_MANIFEST + _UNFINISHED)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write(descriptor, [json.dumps(told, indent=1).encode()])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(unfinished, directory / _MANIFEST)
    sync(directory)
    for each in _files(directory):
        if each not in kept:
            (directory / name_of(each)).unlink()
    # With a single snapshot, the log from the beginning is kept in place of the one before it.
    oldest = kept[-1] if len(kept) == keep else 0
    for first, file in segments(directory):
        if first < oldest:
            file.unlink()


def snapshots(directory: Path, tell: Callable[[str], object] = lambda words: None) -> list[int]:
    """Return the number of changes in each valid snapshot, newest first."""
    path = directory / _MANIFEST
    there = _files(directory)
    try:
        named = [int(each["records"]) for each in json.loads(path.read_bytes())["snapshots"]]
        return [each for each in named if each in there]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        tell(f"{path} cannot be read ({error}); the snapshots beside it are tried, newest first [R409]")
        return sorted(there, reverse=True)


def read_snapshot(directory: Path, records: int) -> Answer:
    """Read a snapshot's state.

    Raises:
        ValueError: the file is damaged or unreadable; the message says why.
    """
    path = directory / name_of(records)
    try:
        head, *sections = frames_of(path)
    except (DamagedFrame, OSError, ValueError) as error:
        raise ValueError(f"{path.name} is damaged: {error} [R741]") from None
    meta: dict[str, Any] = head.meta
    arrays: list[Array] = [array for section in sections for array in section.arrays]
    if meta.get("version") != _VERSION or len(arrays) != meta["arrays"]:
        raise ValueError(f"{path.name} is of another version, or its end is missing [R408]")
    return meta["state"], arrays


def set_aside(directory: Path, records: int) -> None:
    """Rename a damaged snapshot, so that it no longer counts."""
    path = directory / name_of(records)
    path.rename(path.with_name(path.name + ".damaged"))


def remove_unfinished(directory: Path) -> None:
    """Remove unfinished files of a killed server."""
    for path in directory.glob(f"*{_UNFINISHED}"):
        path.unlink(missing_ok=True)


def _files(directory: Path) -> list[int]:
    found = (_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    return [int(match[1]) for match in found if match is not None]

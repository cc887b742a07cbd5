"""Files that are whole or not there, and stay when the power goes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ronde.errors import RondeError

__all__ = ["DamagedFile", "check_digest", "digest", "replace", "sync_folder", "sync_written"]

_BLOCK = 1 << 22


class DamagedFile(RondeError):
    """A published file is missing, or is not what was written."""


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    state = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def check_digest(path: Path, expected: str) -> None:
    """Find out whether a file is what was written.

    Raises:
        DamagedFile: it is not.
    """
    try:
        found = digest(path)
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from None
    if found != expected:
        raise DamagedFile(f"{path} is damaged: its checksum is not the one that its manifest names")


def replace(path: Path, content: bytes) -> None:
    """Write a file in one piece: readers see the old or the new one, also after a crash."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    sync_written(beside, path)


def sync_written(beside: Path, path: Path) -> None:
    """Make what was written to `beside` durable, and call it `path`."""
    handle = os.open(beside, os.O_RDONLY)
    try:
        # Whoever may read the folder may read it; some libraries write for their user alone.
        os.fchmod(handle, os.stat(path.parent).st_mode & 0o644)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(beside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

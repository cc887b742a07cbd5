"""Atomic and durable writes of files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ronde.errors import RondeError
from ronde.trace.whole_file import sync

__all__ = ["DamagedFile", "check_digest", "digest", "replace", "sync_written"]

_BLOCK = 1 << 22


class DamagedFile(RondeError):
    """Raised when a published file is missing, or its checksum differs."""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    state = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def check_digest(path: Path, expected: str) -> None:
    """Check the SHA-256 of a file.

    Raises:
        DamagedFile: the file is missing or its SHA-256 differs.
    """
    try:
        found = digest(path)
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror} [R741]") from None
    if found != expected:
        raise DamagedFile(f"{path} is damaged: its checksum is not the one that its manifest names [R741]")


def replace(path: Path, content: bytes) -> None:
    """Write a file atomically and durably. Readers see the old or the new content, also after a crash."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    sync_written(beside, path)


def sync_written(beside: Path, path: Path) -> None:
    """Sync the written file `beside`, then rename it to `path`."""
    handle = os.open(beside, os.O_RDONLY)
    try:
        # Give it the folder's read permissions; some libraries write files for their user alone.
        os.fchmod(handle, os.stat(path.parent).st_mode & 0o644)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(beside, path)
    sync(path.parent)

"""Small files of a run directory, replaced as a whole while others read them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["replace_file", "sync"]


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file atomically.

    A directory that cannot be written is ignored, because these files only inform observers of a run.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

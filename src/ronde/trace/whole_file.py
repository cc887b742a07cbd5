"""Small files of a run directory, replaced as a whole while others read them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, text: str) -> None:
    """Replace a file by this text at once.

    A directory that takes no files is ignored: these files only tell observers of a run.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)

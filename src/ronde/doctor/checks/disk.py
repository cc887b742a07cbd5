"""The check of disk space for logs and checkpoints."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding
from ronde.trace.run_directory import default_root

__all__ = ["check", "judge"]

CHECK = "disk"
_LEAST, _ENOUGH = 64 << 20, 2 << 30


def check(asked: PreflightRequest) -> Finding:
    """Look at the disk of the state directory, or of its nearest parent."""
    root = default_root(asked.environment)
    there = next(each for each in (root, *root.parents) if each.exists())
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        free = -1
    return judge(root, free, os.access(there, os.W_OK))


def judge(root: Path, free: int, writable: bool) -> Finding:
    """Judge by the free bytes and the right to write."""
    if not writable:
        return Finding(
            check=CHECK,
            level="note",
            summary=f"{root} cannot be written, so runs are kept among temporary files",
            fix="set XDG_STATE_HOME, or give --run-dir DIR",
        )
    told = f"{max(free, 0) >> 20} MiB are free where runs are kept, in {root}"
    fix = "free some, or give --run-dir DIR on another disk"
    if 0 <= free < _LEAST:
        return Finding(check=CHECK, level="wrong", summary=told, fix=fix)
    if 0 <= free < _ENOUGH:
        return Finding(check=CHECK, level="note", summary=f"{told}: little for checkpoints", fix=fix)
    return Finding(check=CHECK, level="good", summary=told)

"""The check of /dev/shm, by which loader workers hand over batches."""

from __future__ import annotations

import os

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "judge"]

CHECK = "shared-memory"
# Docker's 64 MB fail with most image batches; a batch of 64 images of 224 x 224 takes 37 MiB.
_LEAST, _ENOUGH_OF_A_RANK = 128 << 20, 256 << 20


def check(asked: PreflightRequest) -> Finding:
    """Look at its size and free bytes."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return judge(0, 0, asked.ranks)
    return judge(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, asked.ranks)


def judge(size: int, free: int, ranks: int) -> Finding:
    """Judge by its size and free bytes."""
    if size == 0:
        return Finding(
            check=CHECK,
            level="wrong",
            summary="there is no /dev/shm, over which loader workers hand batches",
            fix="mount -t tmpfs none /dev/shm",
        )
    told = f"/dev/shm has {free >> 20} of {size >> 20} MiB free"
    fix = "make it larger: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm"
    if free < _LEAST:
        return Finding(check=CHECK, level="wrong", summary=f"{told}, too little for loader workers", fix=fix)
    if free < _ENOUGH_OF_A_RANK * ranks:
        return Finding(
            check=CHECK, level="note", summary=f"{told}, little for loader workers of {ranks} ranks", fix=fix
        )
    return Finding(check=CHECK, level="good", summary=told)

"""Memory of this process, from its allocators and the kernel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["allocated", "peak_of_process", "peak_on_device"]

_STATUS = Path("/proc/self/status")


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated(*, on_cuda: bool) -> Callable[[], int] | None:
    """Return a function that reads the allocated bytes, in a microsecond.

    On a CPU glibc reports them. None where it cannot: before 2.33, or with another allocator in its place.
    """
    if on_cuda:
        return torch.accelerator.memory_allocated
    if os.environ.get("LD_PRELOAD"):
        return None
    asked = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if asked is None:
        return None
    asked.restype = _MallocInfo

    def read() -> int:
        info = asked()
        return int(info.uordblks + info.hblkhd)

    return read


def peak_of_process() -> int:
    """Return the largest resident set so far, in bytes.

    Not `ru_maxrss`, which counts the parent's until `exec`.
    """
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def peak_on_device() -> int:
    """Return the peak of torch's allocator on the current device, in bytes."""
    return torch.accelerator.max_memory_allocated()

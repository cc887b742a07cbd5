"""Watches by pidfds the ends of processes that others have started."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
from pathlib import Path
from typing import final

from ronde.launch.signal_inbox import SignalInbox

__all__ = ["ProcessWatch", "ended_with"]

# `struct pidfd_info` of Linux 6.15 and later: a mask of 8 bytes at its begin, the status as the last 4 of 64.
_INFO = struct.Struct("<Q52xI")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_HAS_EXIT = 8


@final
class ProcessWatch:
    """Processes that need not be children of this one.

    A thread waits for the end of each, because the exit status can be read only until the parent has reaped
    the process, a short time.
    """

    def __init__(self) -> None:
        self._ended: dict[int, int | None] = {}

    def add(self, pid: int) -> None:
        """Watch a process. A process that is gone already has an unknown exit code."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._ended[pid] = None
            return
        threading.Thread(target=self._await, args=(pid, descriptor), name="ronde pidfd", daemon=True).start()

    def has_ended(self, pid: int) -> bool:
        """Return whether a watched process is gone."""
        return pid in self._ended

    def code(self, pid: int) -> int | None:
        """Return the exit code of an ended process, as `subprocess` has it.

        Returns:
            None if it is unknown.
        """
        return self._ended[pid]

    def _await(self, pid: int, descriptor: int) -> None:
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        end.poll()
        self._ended[pid] = ended_with(pid, descriptor)
        os.close(descriptor)
        SignalInbox.wake()


def ended_with(pid: int, descriptor: int) -> int | None:
    """Return the exit code of an ended process, as `subprocess` has it.

    Args:
        descriptor: its pidfd.

    Returns:
        None if the parent has reaped it, and the kernel does not tell others.
    """
    status = _status_of_zombie(pid)
    if status is None:
        status = _status_by_pidfd(descriptor)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _status_of_zombie(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[49]) if fields[0] == "Z" else None


def _status_by_pidfd(descriptor: int) -> int | None:
    asked = bytearray(_INFO.pack(_HAS_EXIT, 0))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, asked)
    except OSError:  # an older kernel
        return None
    mask, status = _INFO.unpack(asked)
    return status if mask & _HAS_EXIT else None

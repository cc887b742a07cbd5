"""Cleanup after ranks: their processes, shared memory, temporary files.

A run's processes are known by the run id in their environment, which every descendant inherits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import time
from collections.abc import Collection
from pathlib import Path

from ronde.launch.linux_process import is_alive
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.trace.temporary_folder import remove_dead

__all__ = [
    "Leftover",
    "end_leftovers",
    "has_children",
    "leftovers",
    "remove_shared_memory",
    "remove_temporary_of_the_dead",
]

# Trackers of shared memory clean up after their clients and then leave by themselves.
PATIENCE_S = 0.3
TERMINATION_S = 0.3
TORCH_SHARED_MEMORY = re.compile(r"torch_(\d+)_\d+_\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class Leftover:
    """A live process of a run that is not a rank itself."""

    pid: int
    name: str


def has_children() -> bool:
    """Return whether this process has any child, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def leftovers(run_id: str) -> list[Leftover]:
    """List the live processes of a run, without this one."""
    mark = f"{RUN_ID_KEY}={run_id}".encode()
    found: list[Leftover] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                found.append(Leftover(int(entry.name), Path(entry.path, "comm").read_text().strip()))
    return found


def end_leftovers(run_id: str) -> list[Leftover]:
    """End leftover processes of a run; return the ones that did not end.

    Afterwards no process of the run keeps its output channels open.
    """
    if _gone_within(run_id, PATIENCE_S):
        return []
    remaining = leftovers(run_id)
    _signal_all(remaining, signal.SIGTERM)
    if not _gone_within(run_id, TERMINATION_S):
        _signal_all(leftovers(run_id), signal.SIGKILL)
        _gone_within(run_id, TERMINATION_S)
    for process in remaining:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return remaining


def remove_shared_memory(pids: Collection[int], directory: Path = Path("/dev/shm")) -> None:
    """Remove torch's shared memory that processes of the run left when they were killed.

    Only names with the pid of one of these processes are removed, if that process is dead: others may belong
    to other programs.
    """
    if not directory.is_dir():
        return
    for entry in os.scandir(directory):
        match = TORCH_SHARED_MEMORY.fullmatch(entry.name)
        if match and int(match[1]) in pids and not is_alive(int(match[1])):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def remove_temporary_of_the_dead() -> None:
    """Remove temporary files of runs that were killed with their launchers."""
    remove_dead(lambda run_id: bool(leftovers(run_id)))


def _gone_within(run_id: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while leftovers(run_id):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _signal_all(processes: Collection[Leftover], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)

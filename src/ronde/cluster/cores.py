"""Processor cores that this process may use, and its time in their queues."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_cores", "queued_ns"]


def available_cores(root: Path = Path("/")) -> int:
    """Count the cores within affinity and the control group's quota, at least 1.

    A quota of 2.5 cores counts as 2: a third thread would spend half its time throttled, and
    threads that meet at barriers wait for the slowest. `root` is where `/proc` and `/sys` are found.
    """
    cores = len(os.sched_getaffinity(0))
    for quota in _quotas(root):
        cores = min(cores, int(quota))
    return max(1, cores)


def queued_ns(root: Path = Path("/")) -> int:
    """Return nanoseconds that the main thread waited for a core, 0 where unknown."""
    fields = _read(root / "proc/self/schedstat").split()
    return int(fields[1]) if len(fields) == 3 else 0


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas of this process's control group and of its parents, in cores."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
        else:
            continue
        # Inside a container the path may be the host's: the mounted root then is the group itself.
        group = Path(name.lstrip("/"))
        for directory in (base / group, *(base / parent for parent in group.parents), base):
            yield from _quota(directory)


def _quota(directory: Path) -> Iterator[float]:
    quota, _, period = _read(directory / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read(directory / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period"))
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""The kernel's counts and log messages about a lack of memory."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

__all__ = ["kernel_lines", "oom_kills"]

# Lines of the kernel's log that explain an end: memory, and errors of devices (Xid, ECC).
_TELLING = re.compile(
    r"out of memory|oom[-_ ]kill|killed process|segfault|general protection|\bxid\b|\becc\b|mce:",
    re.IGNORECASE,
)
_STAMP = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)", re.S)


def oom_kills(root: Path = Path("/")) -> int:
    """Count the processes of this control group that were killed for memory."""
    most = 0
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            base, file = root / "sys/fs/cgroup", "memory.events"
        elif "memory" in controllers.split(","):
            base, file = root / "sys/fs/cgroup" / controllers, "memory.oom_control"
        else:
            continue
        group = Path(name.lstrip("/"))
        for folder in (base / group, *(base / parent for parent in group.parents)):
            for entry in _read(folder / file).splitlines():
                key, _, count = entry.partition(" ")
                if key == "oom_kill" and count.strip().isdecimal():
                    most = max(most, int(count))
    return most


def kernel_lines(within: float, path: Path = Path("/dev/kmsg"), most: int = 8) -> tuple[str, ...]:
    """Return the kernel's last log lines that explain an end; () if not shown."""
    since = (time.clock_gettime(time.CLOCK_MONOTONIC) - within) * 1e6
    found: list[str] = []
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    try:
        while True:
            try:
                text = os.read(handle, 8192).decode("utf-8", "replace")
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten meanwhile; the next read continues after the gap
                    continue
                break
            match = _STAMP.match(text)
            if match and float(match[1]) >= since and _TELLING.search(match[2]):
                found.append(match[2].splitlines()[0])
    finally:
        os.close(handle)
    return tuple(found[-most:])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""The check of memory, by the host and its control group."""

from __future__ import annotations

from pathlib import Path

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "group_limit", "judge"]

CHECK = "memory"
# Bytes that torch uses before any computation.
_OF_A_RANK = 400 << 20


def check(asked: PreflightRequest) -> Finding:
    """Look at free memory, and the rest within the control group's limit."""
    free = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    return judge(asked.ranks, free, group_limit())


def judge(ranks: int, free: int, limit: int | None) -> Finding:
    """Judge by free bytes and the control group's rest; None: no limit."""
    most = free if limit is None else min(free, limit)
    by = " by the limit of its control group" if limit is not None and limit < free else ""
    told = f"{most >> 20} MiB of memory are left{by}"
    if most < _OF_A_RANK * ranks:
        return Finding(
            check=CHECK,
            level="wrong",
            summary=f"{told}, and torch alone takes {_OF_A_RANK >> 20} MiB on each of {ranks} ranks",
            fix="end other programs, raise the container's limit, or take fewer ranks",
        )
    return Finding(check=CHECK, level="good", summary=told)


def group_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes that control groups still allow this process; None: no limit."""
    left: list[int] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = (
                root / "sys/fs/cgroup" / controllers,
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            )
        else:
            continue
        group = Path(name.lstrip("/"))
        for folder in {base / group, *(base / parent for parent in group.parents)}:
            most, used = (_read(folder / each).strip() for each in names)
            if most.isdecimal() and used.isdecimal() and int(most) < 1 << 60:
                left.append(int(most) - int(used))
    return min(left, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

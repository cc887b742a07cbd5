"""The check of limits: open files, processes, locked memory and others."""

from __future__ import annotations

import os
import resource

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = [
    "check_files",
    "check_memory_lock",
    "check_others",
    "check_processes",
    "judge_files",
    "judge_processes",
]

_FILES_OF_A_RANK, _LEAST_FILES = 512, 256
_PROCESSES_OF_A_RANK, _LEAST_PROCESSES = 64, 32


def check_files(asked: PreflightRequest) -> Finding:
    """Look at the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_files(_number(soft), _number(hard))


def judge_files(soft: float, hard: float) -> Finding:
    """Judge by the soft and the hard limit."""
    told = f"a process may open {_shown(soft)} files"
    fix = f"ulimit -n {_shown(min(hard, 65536))}"
    if soft < _LEAST_FILES:
        return Finding(
            check="open-files", level="wrong", summary=f"{told}, too few for loader workers", fix=fix
        )
    if soft < _FILES_OF_A_RANK:
        return Finding(check="open-files", level="note", summary=f"{told}, few for many workers", fix=fix)
    return Finding(check="open-files", level="good", summary=told)


def check_processes(asked: PreflightRequest) -> Finding:
    """Check the limit of processes and threads, which does not apply to root."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    used = 0 if os.geteuid() == 0 else _threads_of_user()
    return judge_processes(_number(soft) if os.geteuid() else float("inf"), used, asked.ranks)


def judge_processes(limit: float, used: int, ranks: int) -> Finding:
    """Judge by the limit and the number of processes."""
    told = f"{_shown(limit)} processes and threads are allowed, {used} are there"
    if limit - used < _LEAST_PROCESSES * ranks:
        return Finding(
            check="processes",
            level="wrong",
            summary=f"{told}: too few are left for {ranks} ranks",
            fix="ulimit -u 65536",
        )
    if limit - used < _PROCESSES_OF_A_RANK * ranks:
        return Finding(check="processes", level="note", summary=told, fix="ulimit -u 65536")
    return Finding(check="processes", level="good", summary=told if used else "processes are not limited")


def check_memory_lock(asked: PreflightRequest) -> Finding:
    """Check the limit of locked memory: InfiniBand needs an unlimited one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    has_infiniband = os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband"))
    if has_infiniband and soft != resource.RLIM_INFINITY:
        return Finding(
            check="locked-memory",
            level="wrong",
            summary=f"{soft >> 10} KiB of memory may be locked, and InfiniBand is there, which needs more",
            fix="ulimit -l unlimited",
        )
    return Finding(check="locked-memory", level="good", summary="nothing here needs locked memory")


def check_others(asked: PreflightRequest) -> Finding:
    """Check limits that are rarely set: memory, file size and processor time."""
    names = {
        "memory (ulimit -v)": "AS",
        "file size (ulimit -f)": "FSIZE",
        "processor time (ulimit -t)": "CPU",
    }
    found = [
        name
        for name, key in names.items()
        if resource.getrlimit(getattr(resource, f"RLIMIT_{key}"))[0] != resource.RLIM_INFINITY
    ]
    if found:
        return Finding(
            check="limits",
            level="note",
            summary=f"limited are {', '.join(found)}",
            fix="ulimit with unlimited behind it",
        )
    return Finding(
        check="limits", level="good", summary="memory, file size and processor time are not limited"
    )


def _threads_of_user() -> int:
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == os.getuid():
                    count += len(os.listdir(f"{entry.path}/task"))
            except OSError:
                continue
    return count


def _number(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _shown(limit: float) -> str:
    return "any number of" if limit == float("inf") else str(int(limit))

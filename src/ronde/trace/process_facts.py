"""Facts about a process from Linux, without its help."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ronde.trace.evidence import ProcessFacts

__all__ = ["catches", "cpu_seconds", "descendants", "process"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of `/proc/PID/stat` after the name.
_STATE, _PARENT, _USER, _SYSTEM, _THREADS, _RESIDENT = 0, 1, 11, 12, 17, 21


def process(pid: int, proc: Path = Path("/proc")) -> ProcessFacts:
    """Read all facts about a process; without a state if it is gone."""
    folder = proc / str(pid)
    fields = _stat(folder)
    if not fields:
        return ProcessFacts(pid=pid)
    return ProcessFacts(
        pid=pid,
        name=_read(folder / "comm").strip(),
        state=fields[_STATE],
        waits_in=_wchan(folder),
        call=_call(_read(folder / "syscall")),
        threads=int(fields[_THREADS]),
        files=_entries(folder / "fd"),
        most_files=_most_files(_read(folder / "limits")),
        memory=int(fields[_RESIDENT]) * _PAGE,
    )


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> tuple[float, float]:
    """Return CPU seconds of its main thread, and of all threads; 0 if gone."""
    folder = proc / str(pid)
    return _cpu(folder / "task" / str(pid)), _cpu(folder)


def descendants(pids: Collection[int], proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """Return all descendants of each process, except others of `pids`."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir(proc)):
        fields = _stat(proc / name)
        if fields and int(name) not in pids:
            children.setdefault(int(fields[_PARENT]), []).append(int(name))
    found: dict[int, list[int]] = {}
    for pid in pids:
        waiting, found[pid] = [pid], []
        while waiting:
            begun = children.get(waiting.pop(), [])
            found[pid] += begun
            waiting += begun
    return found


def catches(pid: int, signals: Collection[int], proc: Path = Path("/proc")) -> bool:
    """Return whether a process handles each of these signals.

    Most signals end a process without a handler.
    """
    for line in _read(proc / str(pid) / "status").splitlines():
        if line.startswith("SigCgt:"):
            caught = int(line.split()[1], 16)
            return all(caught >> (number - 1) & 1 for number in signals)
    return False


def _cpu(folder: Path) -> float:
    fields = _stat(folder)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS if fields else 0.0


def _stat(folder: Path) -> list[str]:
    return _read(folder / "stat").rpartition(")")[2].split()


def _wchan(folder: Path) -> str:
    name = _read(folder / "wchan").strip()
    return "" if name == "0" else name


def _call(text: str) -> int:
    number = text.partition(" ")[0]
    return int(number) if number.isdecimal() else -1


def _entries(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def _most_files(limits: str) -> int:
    for line in limits.splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdecimal() else 0
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

"""The check of orphans: processes of earlier runs without a launcher."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding
from ronde.launch.rank_environment import RUN_ID_KEY

__all__ = ["check", "judge", "orphans"]

CHECK = "orphans"


def check(asked: PreflightRequest) -> Finding:
    """Look at the environment of every process that may be read."""
    return judge(orphans())


def judge(found: Mapping[str, Sequence[int]]) -> Finding:
    """Judge by the processes of each run without a launcher."""
    if not found:
        return Finding(check=CHECK, level="good", summary="no process of an earlier run is left")
    pids = sorted(pid for each in found.values() for pid in each)
    return Finding(
        check=CHECK,
        level="wrong",
        summary=f"processes of earlier runs are left ({', '.join(found)}): {' '.join(map(str, pids))}",
        fix=f"kill {' '.join(map(str, pids))}",
    )


def orphans(proc: Path = Path("/proc")) -> dict[str, list[int]]:
    """Return processes of runs without a launcher, by run id.

    A launcher is not a process of its run. While it lives, it is the parent of the ranks.
    """
    runs: dict[str, dict[int, int]] = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError, IndexError):
                run = _run_of(Path(entry.path, "environ").read_bytes())
                if run:
                    parent = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1]
                    runs.setdefault(run, {})[int(entry.name)] = int(parent)
    return {
        run: sorted(parents)
        for run, parents in runs.items()
        if all(parent == 1 or parent in parents for parent in parents.values())
    }


def _run_of(environment: bytes) -> str:
    mark = f"{RUN_ID_KEY}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(mark):
            return variable[len(mark) :].decode("utf-8", "replace")
    return ""

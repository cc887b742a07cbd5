"""Gives each rank of a run a limit of memory for what its script adds.

A rank joins its control group when the script is about to begin. Python and torch, which no plan makes
smaller, are charged elsewhere by then. Where no control group can be made the rank has RLIMIT_DATA. That
counts no shared memory, and all of a private mapping, whether anybody writes to it or not: the limit is moved
by both. The run is a process of its own: memory_limit.py RUN_DIR RANKS PLAN SCRIPT
ARGUMENTS.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import mmap
import os
import resource
import subprocess
import sys
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "RONDE_TESTS_MEMORY_LIMIT"
_PATIENCE_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run's ranks.

    Attributes:
        ranks: how many.
        nbytes: of each rank.
        groups: a control group for each rank; none: by RLIMIT_DATA.
    """

    ranks: int
    nbytes: int
    groups: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "control group" if self.groups else "RLIMIT_DATA"

    def struck(self, rank: int) -> bool | None:
        """Whether the kernel has ended a rank for its memory; None where only the rank could tell."""
        if not self.groups:
            return None
        group = Path(self.groups[rank])
        told = group / "memory.events"
        told = told if told.exists() else group / "memory.oom_control"
        counts = dict(line.split() for line in told.read_text().splitlines())
        return int(counts["oom_kill"]) > 0


@contextlib.contextmanager
def limits(ranks: int, nbytes: int, *, by_groups: bool) -> Iterator[Limits]:
    """For each rank a control group that is gone afterwards; or no group, where none is asked for or made."""
    made: list[Path] = []
    try:
        for rank in range(ranks if by_groups else 0):
            group = _make(f"ronde-test-{os.getpid()}-{rank}", nbytes)
            if group is None:
                break
            made.append(group)
        yield Limits(ranks, nbytes, tuple(map(str, made)) if len(made) == ranks else ())
    finally:
        for group in made:
            _remove(group)


def _make(name: str, nbytes: int) -> Path | None:
    """A control group with this limit, of version 2 or 1; None without the right to make one."""
    for parent, limit, swap in _hierarchies():
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(nbytes))
            with contextlib.suppress(OSError):  # a kernel without swap has no such file
                (group / swap).write_text("0" if swap == "memory.swap.max" else str(nbytes))
            return group
        except OSError:
            _remove(group)
    return None


def _hierarchies() -> Iterator[tuple[Path, str, str]]:
    """Where groups with a limit of memory may be made, and the names of the files of limit and swap."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            yield Path(place), "memory.max", "memory.swap.max"
        elif kind == "cgroup" and "memory" in options.split(","):
            yield Path(place), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:  # its last process is not gone yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def run(
    script: Path, *arguments: str, plan: str, given: Limits, place: Path
) -> subprocess.CompletedProcess[str]:
    """The script on ranks, each under its limit."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        VARIABLE: json.dumps(dataclasses.asdict(given)),
    }
    words = [str(place / "run"), str(given.ranks), plan, str(script), *arguments]
    return subprocess.run(
        [sys.executable, __file__, *words],
        cwd=place, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def join(session: Any) -> None:
    """In a rank, when its script is about to begin."""
    importlib.import_module("torch._dynamo")  # the first step of any optimizer brings it in
    given = json.loads(os.environ[VARIABLE])
    if given["groups"]:
        Path(given["groups"][session.config.place.rank], "cgroup.procs").write_text(str(os.getpid()))
        return
    status = Path("/proc/self/status").read_text().splitlines()
    data = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + given["nbytes"], resource.RLIM_INFINITY))
    _count_shared_memory()


def _count_shared_memory() -> None:
    """Have the limit move with what RLIMIT_DATA does not know of."""
    from ronde.comm import once_per_host
    from ronde.sync import bucket_memory
    from ronde.sync.cut_bucket import CutBucket

    standing: weakref.WeakValueDictionary[int, _Standing] = weakref.WeakValueDictionary()
    plain_reserve, plain_map, plain_memory = os.posix_fallocate, once_per_host._mapped, CutBucket._memory_for

    def reserve(descriptor: int, start: int, nbytes: int) -> None:
        plain_reserve(descriptor, start, nbytes)
        _move_limit(-nbytes)

    def mapped(descriptor: int, nbytes: int, flags: int) -> Any:
        if flags & mmap.MAP_PRIVATE:
            _move_limit(nbytes)
        return plain_map(descriptor, nbytes, flags)

    def anonymous(descriptor: int, nbytes: int) -> mmap.mmap:
        made = _Standing(descriptor, nbytes)
        standing[ctypes.addressof(ctypes.c_char.from_buffer(made))] = made
        return made

    def memory_for(bucket: Any, count: int) -> Any:
        """Pages of standing memory come with the first sum."""
        found = plain_memory(bucket, count)
        room = standing.get(bucket._room.tensor.data_ptr())
        if bucket._used and room is not None:
            room.charge()
        return found

    vars(bucket_memory)["mmap"] = types.SimpleNamespace(mmap=anonymous)
    os.posix_fallocate, once_per_host._mapped, CutBucket._memory_for = reserve, mapped, memory_for


class _Standing(mmap.mmap):
    """Shared memory of one process, charged from its first use to its end."""

    charged = 0

    def charge(self) -> None:
        if not self.charged:
            self.charged = len(self)
            _move_limit(-self.charged)

    def __del__(self) -> None:
        _move_limit(self.charged)


def _move_limit(nbytes: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (max(0, soft + nbytes), hard))


def main() -> None:
    from ronde.launch.job import LaunchJob
    from ronde.launch.launcher import launch
    from ronde.launch.run_spec import RunSpec
    from ronde.trace.run_directory import RunDirectory

    run_dir, ranks, plan, script, *arguments = sys.argv[1:]
    job = LaunchJob(
        run=RunSpec(
            script=script,
            arguments=tuple(arguments),
            plan=plan,
            extensions=("memory_limit:join",),
            threads=1,
        ),
        ranks=int(ranks),
        run_directory=RunDirectory.create(Path(run_dir), os.environ),
        environment=os.environ,
    )
    sys.exit(launch(job).exit_code)


if __name__ == "__main__":
    main()

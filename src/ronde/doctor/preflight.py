"""All checks of this host before a run, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.doctor.asked import PreflightRequest
from ronde.doctor.checks import (
    caches,
    clock,
    devices,
    disk,
    host_name,
    limits,
    memory,
    network_card,
    orphans,
    ports,
    shared_memory,
    threads,
    versions,
)
from ronde.doctor.finding import Finding

__all__ = ["CHECKS", "examine", "lines"]

CHECKS: tuple[Callable[[PreflightRequest], Finding], ...] = (
    versions.check,
    devices.check,
    threads.check,
    memory.check,
    shared_memory.check,
    limits.check_files,
    limits.check_processes,
    limits.check_memory_lock,
    limits.check_others,
    disk.check,
    caches.check,
    host_name.check,
    network_card.check,
    ports.check,
    clock.check,
    orphans.check,
)

_MARKS = {"good": "ok   ", "note": "note ", "wrong": "WRONG"}


def examine(
    environment: Mapping[str, str], *, ranks: int | None, threads: int | None, hosts: int = 1
) -> Sequence[Finding]:
    """Run every check.

    Args:
        ranks: number of the coming run; None: one for each device, or one.
        threads: number that each is told to use; None: not given.
        hosts: number of hosts in it.
    """
    count = ranks or (len(cuda_devices(environment)) if torch_has_cuda() else 0) or 1
    asked = PreflightRequest(ranks=count, hosts=hosts, threads=threads, environment=environment)
    return [check(asked) for check in CHECKS]


def lines(findings: Sequence[Finding]) -> Sequence[str]:
    """Render findings for the user, fixes below faults, good ones counted."""
    told: list[str] = []
    good = Counter(each.host for each in findings if each.host and each.level == "good")
    told += (f"{_MARKS['good']} {host}: {count} checks" for host, count in good.items())
    for each in findings:
        if each.host and each.level == "good":
            continue
        where = f"{each.host}: " if each.host else ""
        told.append(f"{_MARKS[each.level]} {where}{each.check}: {each.summary}")
        if each.fix and each.level != "good":
            told.append(f"      fix: {each.fix}")
    wrong = sum(each.level == "wrong" for each in findings)
    return [
        *told,
        f"{wrong} of {len(findings)} checks found something wrong" if wrong else "nothing is wrong here",
    ]

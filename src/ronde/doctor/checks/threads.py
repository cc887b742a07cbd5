"""Check of the number of threads against the cores."""

from __future__ import annotations

from ronde.cluster.cores import available_cores
from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "judge"]

CHECK = "threads"


def check(asked: PreflightRequest) -> Finding:
    """Read the option, OMP_NUM_THREADS, or take an equal share."""
    given = asked.environment.get("OMP_NUM_THREADS", "")
    threads = asked.threads or (int(given) if given.isdecimal() else None)
    return judge(asked.ranks, threads, available_cores(), by_variable=asked.threads is None and bool(given))


def judge(ranks: int, threads: int | None, cores: int, *, by_variable: bool) -> Finding:
    """Judge by the threads of each rank; None: an equal share."""
    if threads is None:
        if ranks > cores:
            return Finding(
                check=CHECK,
                level="note",
                summary=f"{ranks} ranks share {cores} cores, so they take turns",
                fix=f"--ranks {cores} at most, where speed counts",
            )
        each = max(1, cores // ranks)
        return Finding(
            check=CHECK, level="good", summary=f"{ranks} ranks with {each} threads each on {cores} cores"
        )
    told = f"{ranks} ranks with {threads} threads each on {cores} cores"
    source = " (OMP_NUM_THREADS)" if by_variable else ""
    fix = (
        "unset OMP_NUM_THREADS: ronde run shares cores out"
        if by_variable
        else f"--threads {max(1, cores // ranks)}"
    )
    if ranks * threads > max(cores, ranks):
        return Finding(
            check=CHECK,
            level="wrong",
            summary=f"{told}{source}: they take turns and wait for each other",
            fix=fix,
        )
    if ranks * threads * 2 <= cores:
        return Finding(check=CHECK, level="note", summary=f"{told}{source}: most cores stay idle", fix=fix)
    return Finding(check=CHECK, level="good", summary=told)

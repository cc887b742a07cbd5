"""Evidence of a run: from its processes during the run, or from its files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import time
from pathlib import Path

from ronde.doctor.explain import explain
from ronde.errors import LaunchError, UsageError
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.trace.events import read_events
from ronde.trace.evidence import Evidence, evidence_path, read_evidence
from ronde.trace.evidence_collector import EvidenceCollector
from ronde.trace.explanation import Explanation, read_explanation
from ronde.trace.heartbeat import look_at
from ronde.trace.launch_record import LaunchRecord, read_launch_record
from ronde.trace.run_directory import RunDirectory

__all__ = ["examine"]

# A launcher collects answers of all hosts within this time, unless it is stopped.
_ANSWER_S = 10.0
_VITALS = re.compile(r"rank-(\d+)\.vitals")


def examine(path: Path) -> tuple[Evidence, Explanation]:
    """Return the evidence about a run, with an explanation.

    Raises:
        UsageError: the path is not a run directory, or of an older ronde.
        LaunchError: only the launcher could look at the ranks, and it does not answer.
    """
    directory = RunDirectory(path=path.absolute(), run_id="")
    record = read_launch_record(directory.launch)
    if record is None:
        raise UsageError(
            f"{path} is not a run directory of ronde run (it has no launch.json); give the directory of "
            "--run-dir, or of the line `logs of all ranks` [R610]"
        )
    if record.watched and record.host != platform.node() and not _has_ended(directory):
        raise UsageError(
            f"{path} is of a running run, which was started on {record.host}; run ronde doctor {path} there "
            "[R611]"
        )
    if record.by_agents and directory.is_in_use():
        evidence = _asked(directory)
        return evidence, explain(evidence)
    ranks = record.pids or _shown(directory)
    pids = {} if record.by_agents else {rank: pid for rank, pid in ranks.items() if _is_of(pid, record)}
    if not pids:
        failure = read_evidence(directory.path, "failure")
        if failure is not None:
            # The launcher's final explanation counts, because it may use earlier evidence.
            return failure, read_explanation(directory.path) or explain(failure)
        end = read_evidence(directory.path, "end")
        if end is not None:
            evidence = dataclasses.replace(end, reason="asked")
            return evidence, explain(evidence)
    everyone = {rank: pids.get(rank, 0) for rank in ranks}
    gathering = EvidenceCollector(directory, lambda: everyone)
    evidence = gathering.gather("asked")
    if not pids and record.watched and _launcher_is_gone(directory, record, evidence):
        evidence = dataclasses.replace(evidence, launcher_gone=True)
    return evidence, explain(evidence)


def _shown(directory: RunDirectory) -> dict[int, int]:
    """Return the process of each rank, from the file that the rank wrote."""
    names = [match for path in directory.path.iterdir() if (match := _VITALS.fullmatch(path.name))]
    seen = {int(match[1]): look_at(directory.path / match[0]) for match in names}
    return {rank: each.pid for rank, each in sorted(seen.items()) if each is not None}


def _asked(directory: RunDirectory) -> Evidence:
    """Ask the launcher, by a file, for evidence of all hosts."""
    answer = evidence_path(directory.path, "asked")
    with contextlib.suppress(OSError):
        answer.unlink()
    try:
        directory.question.touch()
    except OSError as error:
        raise LaunchError(
            f"cannot write {directory.question}, by which the launcher is asked: {error.strerror}; run ronde "
            "doctor as the user who started the run [R611]"
        ) from None
    until = time.monotonic() + _ANSWER_S
    while time.monotonic() < until:
        found = read_evidence(directory.path, "asked")
        if found is not None:
            return found
        if not directory.is_in_use():
            break
        time.sleep(0.05)
    raise LaunchError(
        f"the launcher of {directory.path} has not answered for {_ANSWER_S:g} s, and only it has access to "
        "ranks of other hosts; check whether it is stopped (kill -CONT) [R611]"
    )


def _has_ended(directory: RunDirectory) -> bool:
    """Return whether the launcher has recorded the end."""
    return any(event.kind == "end" for event in read_events(directory.path))


def _launcher_is_gone(directory: RunDirectory, record: LaunchRecord, evidence: Evidence) -> bool:
    """Return whether the ranks ended early, and the launcher left no record."""
    if all(rank.summary is not None or rank.standing == "ended" for rank in evidence.ranks):
        return False
    return not _has_ended(directory) and not Path(f"/proc/{record.launcher}").exists()


def _is_of(pid: int, record: LaunchRecord) -> bool:
    """Return whether a process is still a rank of this run."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{RUN_ID_KEY}={record.run_id}".encode() in variables and pid != os.getpid()

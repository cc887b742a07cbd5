"""What is known: of a run that goes on by looking at it, of an ended one by its files."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from ronde.doctor.explain import explain
from ronde.errors import UsageError
from ronde.launch.gathering import Gathering
from ronde.launch.launched import Launched, read_launched
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.trace.events import read_events
from ronde.trace.evidence import Evidence, read_evidence
from ronde.trace.explanation import Explanation, read_explanation
from ronde.trace.run_directory import RunDirectory

__all__ = ["examine"]


def examine(path: Path) -> tuple[Evidence, Explanation]:
    """The evidence about a run, and what it means.

    Raises:
        UsageError: this is not a run directory, or of an older ronde.
    """
    directory = RunDirectory(path=path.absolute(), run_id="")
    launched = read_launched(directory.launch)
    if launched is None:
        raise UsageError(
            f"{path} is not a run directory of ronde run (it has no launch.json); give what --run-dir named, "
            "or what stands behind `logs of all ranks`"
        )
    pids = {rank: pid for rank, pid in enumerate(launched.pids) if _is_of(pid, launched)}
    if not pids:
        failure = read_evidence(directory.path, "failure")
        if failure is not None:
            # What the launcher has said at the end counts: it may rest on what was seen before.
            return failure, read_explanation(directory.path) or explain(failure)
    everyone = {rank: pids.get(rank, 0) for rank in range(len(launched.pids))}
    gathering = Gathering(directory, everyone, len(everyone))
    evidence = gathering.gather("asked")
    if not pids and _launcher_is_gone(directory, launched, evidence):
        evidence = dataclasses.replace(evidence, launcher_gone=True)
    return evidence, explain(evidence)


def _launcher_is_gone(directory: RunDirectory, launched: Launched, evidence: Evidence) -> bool:
    """Whether all ranks have ended before their end, and the launcher has not lived to say so."""
    if all(rank.summary is not None or rank.standing == "ended" for rank in evidence.ranks):
        return False
    told = any(event.kind == "end" for event in read_events(directory.path))
    return not told and not Path(f"/proc/{launched.launcher}").exists()


def _is_of(pid: int, launched: Launched) -> bool:
    """Whether that process is a rank of this run still: numbers are given again."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{RUN_ID_KEY}={launched.run_id}".encode() in variables and pid != os.getpid()

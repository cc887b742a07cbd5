"""A run that is looked at from outside: while it goes on, and by what it has left."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from ronde.doctor.run import examine
from ronde.errors import UsageError
from ronde.launch.launched import Launched, read_launched
from ronde.launch.process_facts import process
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.trace.events import write_event
from ronde.trace.evidence import Evidence, Failure, Process, RankEvidence, write_evidence

RUN = "20260101-000000-abcdef"


def note(folder: Path, *pids: int) -> None:
    launched = Launched(run_id=RUN, launcher=1, pids=pids, script="train.py", plan="ddp")
    (folder / "launch.json").write_text(json.dumps(dataclasses.asdict(launched)))
    assert read_launched(folder / "launch.json") == launched


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_processes_of_a_run_that_goes_on_are_looked_at(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, RUN_ID_KEY: RUN}) as rank:
        # Popen returns inside exec, before Linux shows the new program's environment.
        while not (environment_of(rank.pid) and process(rank.pid).state == "S"):
            assert rank.poll() is None
        note(tmp_path, rank.pid)
        evidence, found = examine(tmp_path)
        rank.kill()
    assert evidence.ranks[0].process.name == "sleep"
    assert (found.cause, found.rank) == ("sleeps", 0)


def test_another_process_of_that_number_is_not_taken_for_a_rank(tmp_path: Path) -> None:
    note(tmp_path, os.getppid())
    evidence, _ = examine(tmp_path)
    assert evidence.ranks[0].process.state == ""


def test_after_a_run_what_was_frozen_counts(tmp_path: Path) -> None:
    note(tmp_path, 2**22 - 3, 2**22 - 5)
    ranks = tuple(RankEvidence(rank=each, process=Process(pid=7), code=-9 * each or None) for each in (0, 1))
    failure = Failure(rank=1, kind="signal", exit_code=137)
    write_evidence(
        Evidence(run_directory=str(tmp_path), reason="failure", time=0, ranks=ranks, failure=failure)
    )
    _, found = examine(tmp_path)
    assert (found.cause, found.rank) == ("killed", 1)


def test_a_run_that_ended_well(tmp_path: Path) -> None:
    note(tmp_path, 2**22 - 3)
    (tmp_path / "rank-0.summary.json").write_text(json.dumps({"data": 0.0, "communication": 0.0}))
    _, found = examine(tmp_path)
    assert found.cause == "ended"


def test_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory of ronde run"):
        examine(tmp_path)


def test_a_launcher_that_has_left_no_word_was_killed(tmp_path: Path) -> None:
    launched = Launched(run_id=RUN, launcher=2**22 - 7, pids=(2**22 - 3,), script="train.py", plan="ddp")
    (tmp_path / "launch.json").write_text(json.dumps(dataclasses.asdict(launched)))
    assert examine(tmp_path)[1].cause == "launcher-lost"
    write_event(tmp_path, "end", "exit code 143", exit_code=143)
    assert examine(tmp_path)[1].cause != "launcher-lost"

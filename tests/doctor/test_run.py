"""A run that is looked at from outside: while it goes on, and by what it has left."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ronde.doctor.run import examine
from ronde.errors import UsageError
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.trace.events import write_event
from ronde.trace.evidence import Evidence, Failure, HostFacts, ProcessFacts, RankEvidence, write_evidence
from ronde.trace.heartbeat import Vitals, vitals_path
from ronde.trace.launch_record import LaunchedNode, LaunchRecord, read_launch_record, write_launch_record
from ronde.trace.process_facts import process
from ronde.trace.run_directory import RunDirectory

RUN = "20260101-000000-abcdef"


def note(folder: Path, *pids: int, **fields: Any) -> None:
    record = LaunchRecord(
        **{
            "run_id": RUN,
            "host": os.uname().nodename,
            "launcher": 1,
            "script": "train.py",
            "plan": "ddp",
            "nodes": [LaunchedNode(name="one", run_id=RUN, pids=dict(enumerate(pids)))],
            **fields,
        }
    )
    write_launch_record(folder / "launch.json", record)
    assert read_launch_record(folder / "launch.json") == record


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
    ranks = tuple(
        RankEvidence(rank=each, process=ProcessFacts(pid=7), code=-9 * each or None) for each in (0, 1)
    )
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
    note(tmp_path, 2**22 - 3, launcher=2**22 - 7)
    assert examine(tmp_path)[1].cause == "launcher-lost"
    write_event(tmp_path, "end", "exit code 143", exit_code=143)
    assert examine(tmp_path)[1].cause != "launcher-lost"


def test_of_a_run_on_hosts_the_launcher_is_asked(tmp_path: Path) -> None:
    note(tmp_path, 2**22 - 3, by_agents=True)
    held = RunDirectory.create(tmp_path / "other", {})
    (tmp_path / "lock").hardlink_to(held.path / "lock")  # as a launcher holds it
    answer = Evidence(
        run_directory=str(tmp_path),
        reason="asked",
        time=0,
        ranks=(RankEvidence(rank=0, process=ProcessFacts(pid=7, state="R"), standing="running", step=3),),
    )

    def launcher() -> None:
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        write_evidence(answer)

    thread = threading.Thread(target=launcher)
    thread.start()
    evidence, found = examine(tmp_path)
    thread.join()
    held.release()
    assert evidence == answer
    assert (found.cause, found.summary) == ("running", "1 ranks run, step 3")


def test_a_run_on_hosts_that_ended_well_is_known_by_its_last_evidence(tmp_path: Path) -> None:
    """Two threads on each of two hosts with two cores are not four on two."""
    note(tmp_path, 2**22 - 3, 2**22 - 5, by_agents=True)
    ranks = [
        RankEvidence(rank=each, process=ProcessFacts(pid=7), threads=2, host=each, summary={"data": 0.0})
        for each in (0, 1)
    ]
    hosts = (HostFacts(name="one", cores=2), HostFacts(name="two", cores=2))
    write_evidence(
        Evidence(run_directory=str(tmp_path), reason="end", time=0, ranks=tuple(ranks), hosts=hosts)
    )
    write_event(tmp_path, "end", "exit code 0", exit_code=0)
    assert examine(tmp_path)[1].cause == "ended"


def test_a_run_that_goes_on_is_asked_about_on_the_host_of_its_launcher(tmp_path: Path) -> None:
    note(tmp_path, 2**22 - 3, host="elsewhere")
    with pytest.raises(UsageError, match="started on elsewhere; run ronde doctor"):
        examine(tmp_path)


def test_ranks_of_another_launcher_show_their_processes(tmp_path: Path) -> None:
    """None of them can be called the first, when all are gone and nobody has watched."""
    note(tmp_path, nodes=[], watched=False, launcher=2**22 - 7)
    for rank in (0, 1):
        assert Vitals.create(vitals_path(tmp_path, rank), thread=0, threads=1) is not None
    evidence, found = examine(tmp_path)
    assert [each.rank for each in evidence.ranks] == [0, 1]
    assert found.cause == "unknown"

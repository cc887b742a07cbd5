"""Ranks that another launcher has started: one process on each host says why they fail."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ronde.launch.failure import AbortKind, ErrorFile, RankDeath, RankExits
from ronde.launch.node import NodeOfRun
from ronde.launch.node_events import NodeEnd, NodeEvents
from ronde.launch.observed_node import ObservedNode
from ronde.launch.signal_inbox import SignalInbox
from ronde.trace.evidence import Evidence
from ronde.trace.run_directory import RunDirectory

from .conftest import BOUND_S, wait_until
from .test_torchrun import DRIVER, _place

WAITING = """
note(f"rank{rank}")
wait_for_ever()
"""


class Job:
    """Two ranks as torchrun starts them, each with the stderr of its own."""

    def __init__(self, experiment: Any, script: str) -> None:
        self._experiment = experiment
        path = experiment.command(script)[4]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(DRIVER), str(experiment.run_dir), path],
                env=experiment.environment(**_place(rank)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        experiment.processes += self.ranks

    def wait_for_start(self) -> None:
        """Wait for the ranks, and for the observer, which answers when it has seen them."""
        for rank in (0, 1):
            self._experiment.pid(f"rank{rank}")
        directory = RunDirectory(path=self._experiment.run_dir, run_id="")
        directory.question.touch()
        wait_until((directory.path / "evidence" / "asked.json").exists, "an answer")

    def end(self) -> Sequence[str]:
        """What the user reads on the stderr of rank 0, and of the observer."""
        return self.ranks[0].communicate(timeout=BOUND_S)[1].splitlines()


def test_a_killed_rank_is_explained(experiment: Any) -> None:
    job = Job(experiment, WAITING)
    job.wait_for_start()
    job.ranks[1].kill()
    job.ranks[1].wait()
    wait_until((experiment.run_dir / "evidence" / "explanation.json").exists, "an explanation")
    job.ranks[0].terminate()  # as the launcher does
    lines = job.end()
    assert lines[0] == f"ronde: rank 1 was killed by SIGKILL; logs of all ranks: {experiment.run_dir}"
    assert lines[1] == "cause: rank 1 was killed from outside (SIGKILL)"
    assert sum(line.startswith("cause:") for line in lines) == 1


def test_a_job_that_is_cancelled_is_no_failure(experiment: Any) -> None:
    job = Job(experiment, WAITING)
    job.wait_for_start()
    for rank in job.ranks:
        rank.terminate()
    assert job.end() == []


def test_an_error_of_another_rank_is_shown(experiment: Any) -> None:
    job = Job(experiment, "if rank == 1:\n    raise ValueError('a bad row')\nwait_for_end_of('nobody')\n")
    job.ranks[1].wait(BOUND_S)
    wait_until((experiment.run_dir / "evidence" / "failure.json").exists, "evidence")
    job.ranks[0].terminate()
    lines = job.end()
    assert lines[0].startswith("ronde: rank 1 failed: ValueError: a bad row; logs of all ranks: ")
    assert "ValueError: a bad row" in lines[1:]


class Told(NodeEvents):
    """Keeps account, and what was told."""

    def __init__(self) -> None:
        self.ends = RankExits()
        self.what: list[str] = []

    def died(self, death: RankDeath) -> None:
        self.ends.deaths.append(death)

    def erred(self, error: ErrorFile) -> None:
        self.ends.errors[error.rank] = error

    def froze(self, evidence: Evidence) -> None:
        self.what.append("froze")

    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        self.what.append("stalled")

    def looked(self, evidence: Evidence) -> None:
        self.what.append("looked")

    def aborted(self, kind: AbortKind, said: str) -> None:
        self.what.append(kind)

    def noticed(self, words: str) -> None:
        self.what.append(words)

    def ended(self) -> None:
        self.what.append("ended")

    def concluded(self, end: NodeEnd) -> None:
        self.what.append("concluded")


def test_errors_of_an_earlier_run_in_the_same_directory_are_not_its_own(tmp_path: Path) -> None:
    main = subprocess.Popen(["sleep", "60"])
    words = '{"rank": 0, "time": 5.0, "kind": "script", "type": "E", "message": "", "traceback": ""}'
    (tmp_path / "rank-0.error.json").write_text(words)
    told = Told()
    with SignalInbox():
        share = NodeOfRun(name="", first_rank=0, ranks=1)
        directory = RunDirectory(path=tmp_path, run_id="x")
        node = ObservedNode(share, directory, 60.0, main.pid, since=time.time())
        node.begin(told.ends, told)
        node.step()
        assert told.what == []
        main.send_signal(signal.SIGTERM)
        wait_until(lambda: node.step() or node.is_over, "the end")
        main.wait()
    assert told.what == ["concluded"]
    assert told.ends.failure() is None
    assert told.ends.exit_code() == 128 + signal.SIGTERM


@pytest.mark.parametrize("code", [0, 3])
def test_how_a_rank_ends_is_read_from_outside(tmp_path: Path, code: int) -> None:
    main = subprocess.Popen(["sh", "-c", f"read line; exit {code}"], stdin=subprocess.PIPE)
    told = Told()
    with SignalInbox():
        share = NodeOfRun(name="", first_rank=0, ranks=1)
        node = ObservedNode(share, RunDirectory(path=tmp_path, run_id="x"), 60.0, main.pid, since=0.0)
        node.begin(told.ends, told)
        node.step()
        main.communicate(b"\n")
        wait_until(lambda: node.step() or node.is_over, "the end")
    assert told.what == (["froze", "concluded"] if code else ["concluded"])
    assert told.ends.exit_code() == code

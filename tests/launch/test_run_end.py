"""What is told about the end of a run on several hosts, from what its nodes have said."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ronde.doctor.explain import explain
from ronde.launch.failure import ErrorFile, RankDeath, RankExits
from ronde.launch.job import LaunchJob
from ronde.launch.node import NodeOfRun
from ronde.launch.run_end import RunEnd
from ronde.launch.run_spec import RunSpec
from ronde.trace.events import read_events
from ronde.trace.evidence import Evidence, HostFacts, ProcessFacts, RankEvidence, read_evidence
from ronde.trace.explanation import read_explanation
from ronde.trace.run_directory import RunDirectory
from ronde.trace.run_hosts import RunHost

NODES = (
    NodeOfRun(name="one", first_rank=0, ranks=2, address="10.0.0.1"),
    NodeOfRun(name="two", first_rank=2, ranks=1, address="10.0.0.2"),
)


@pytest.fixture
def end(tmp_path: Path) -> RunEnd:
    job = LaunchJob(
        run=RunSpec(script="x.py", timeout=6.0),
        ranks=3,
        run_directory=RunDirectory(path=tmp_path, run_id="1"),
        environment={},
        shown=False,
    )
    return RunEnd(job, RankExits(), NODES, explain, lambda: False)


def rank(number: int, **fields: Any) -> RankEvidence:
    return RankEvidence(**{"rank": number, "process": ProcessFacts(pid=100 + number, state="S"), **fields})


def evidence(*ranks: RankEvidence, reason: str = "failure", **host: Any) -> Evidence:
    return Evidence(run_directory="/there", reason=reason, time=0.0, ranks=ranks, hosts=(HostFacts(**host),))


def error(number: int, kind: Any, *, time: float) -> ErrorFile:
    return ErrorFile(
        rank=number, time=time, kind=kind, type="ValueError", message="x", traceback="Traceback ..."
    )


def test_the_first_failure_is_told_with_its_host(end: RunEnd) -> None:
    end.ends.deaths += [RankDeath(rank=0, time=105.0, code=-9), RankDeath(rank=2, time=100.0, code=3)]
    outcome = end.outcome()
    assert outcome.exit_code == 3
    assert outcome.report.startswith("rank 2 on two exited with code 3; logs of all ranks: ")


def test_a_lost_host_is_told_unless_a_rank_failed_before(end: RunEnd, tmp_path: Path) -> None:
    end.abort("host", "the connection to two is lost", 1)
    end.ends.errors[0] = error(0, "peer", time=0.0)  # it only lost its peer
    assert end.outcome().report.startswith("the connection to two is lost\nlogs of all ranks: ")
    assert read_events(tmp_path)[-1].text == "the connection to two is lost"
    end.ends.errors[1] = error(1, "script", time=0.0)
    assert end.outcome().report.startswith("rank 1 on one failed: ValueError: x; logs")


def test_a_silent_host_is_named_in_the_stall_that_it_brings(end: RunEnd, tmp_path: Path) -> None:
    end.hear_nothing_of({0: 0.5, 1: 11.0})
    waiting = evidence(rank(0, standing="waiting"), rank(1, standing="waiting"), reason="stall")
    end.stalled({0: waiting}, is_over=False)
    found = read_explanation(tmp_path)
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("host-silent", 2, "two")
    kept = read_evidence(tmp_path, "stall")
    assert kept is not None
    assert [(each.name, each.address) for each in kept.hosts] == [("one", "10.0.0.1")]
    assert [(each.name, each.ranks, each.address) for each in kept.silent] == [("two", (2,), "10.0.0.2")]
    # It is given up: the end is explained by what was seen.
    end.froze(0, waiting)
    end.abort("host", "the connection to two is lost", 1)
    assert "cause: nothing has come from two (rank 2) for 11 s" in end.outcome().report


def test_a_node_that_is_late_with_its_answer_is_not_called_silent(end: RunEnd, tmp_path: Path) -> None:
    """64 ranks of one machine: nodes need longer to look at their ranks than they are given."""
    end.hear_nothing_of({0: 0.4, 1: 11.0})
    waiting = evidence(rank(2, standing="waiting"), reason="stall")
    end.stalled({1: waiting}, is_over=False)
    told = read_events(tmp_path)[0].text.splitlines()
    assert told[1:3] == ["  rank 2 waits", "  ranks 0 to 1: one has not answered yet"]


def test_a_rank_that_names_the_lost_host_says_more_than_that_all_have_waited(tmp_path: Path) -> None:
    """An observer sees one host of the two."""
    job = LaunchJob(
        run=RunSpec(script="x.py", timeout=6.0),
        ranks=3,
        run_directory=RunDirectory(path=tmp_path, run_id="1"),
        environment={},
        shown=False,
    )
    end = RunEnd(job, RankExits(), NODES[:1], explain, lambda: False)
    waiting = evidence(rank(0, standing="waiting"), rank(1, standing="waiting"), reason="stall")
    waiting = dataclasses.replace(waiting, unobserved=(RunHost(name="two", ranks=(2,)),))
    end.stalled({0: waiting}, is_over=False)
    found = read_explanation(tmp_path)
    assert found is not None
    assert found.cause == "waits-for-hosts"
    end.froze(0, waiting)
    end.ends.errors[0] = error(0, "peer", time=0.0)
    assert "cause:" not in end.outcome().report
    found = read_explanation(tmp_path)
    assert found is not None
    assert found.cause == "peer-lost"


def test_a_kill_is_explained_by_the_evidence_of_its_own_host(end: RunEnd, tmp_path: Path) -> None:
    """The other host has counted kills for lack of memory, and is not meant."""
    end.froze(0, evidence(rank(0), rank(1), oom_kills=3))
    end.froze(1, evidence(rank(2, step=236, where="train.py:7", what="all_gather")))
    end.ends.deaths.append(RankDeath(rank=2, time=1.0, code=-9))
    end.ended(1, evidence(rank(2, code=-9, step=236, where="train.py:7", what="all_gather")), (), ())
    assert end.outcome().report.splitlines()[:3] == [
        f"rank 2 on two was killed by SIGKILL; logs of all ranks: {tmp_path}",
        "cause: rank 2 was killed from outside (SIGKILL)",
        "  no kill for lack of memory was counted or logged here",
    ]
    found = read_explanation(tmp_path)
    assert found is not None
    assert (found.cause, found.rank) == ("killed", 2)
    kept = read_evidence(tmp_path, "failure")
    assert kept is not None
    assert [(each.rank, kept.host_of(each).name) for each in kept.ranks] == [
        (0, "one"),
        (1, "one"),
        (2, "two"),
    ]


def test_a_standstill_has_the_places_of_all_hosts_and_the_cause(end: RunEnd, tmp_path: Path) -> None:
    waits = rank(2, standing="waiting", where="x.py:8", what="all_reduce")
    runs = [
        rank(each, standing="running", process=ProcessFacts(pid=each, state="T"), where="x.py:7", what="step")
        for each in (0, 1)
    ]
    parts = {1: evidence(waits, reason="stall"), 0: evidence(*runs, reason="stall")}
    end.stalled(parts, is_over=False)
    told = read_events(tmp_path)[0].text.splitlines()
    assert told[0].startswith("ranks have waited for 3 s")
    assert [line.split()[:2] for line in told[1:4]] == [["rank", "0"], ["rank", "1"], ["rank", "2"]]
    assert told[4].startswith("cause: rank 0 is stopped")
    end.stalled(parts, is_over=True)
    outcome = end.outcome()
    assert outcome.exit_code == 1
    assert outcome.report.startswith("the run hung for 6 s and was ended (--timeout)\n  rank 0")


def test_interrupted_by_the_user(end: RunEnd) -> None:
    end.ends.interrupted_by = 2
    end.ends.deaths += [RankDeath(rank=2, time=1.0, code=-2), RankDeath(rank=0, time=2.0, code=7)]
    outcome = end.outcome()
    assert (outcome.exit_code, outcome.report) == (7, "")  # rank 0 has handled it


def test_of_a_run_that_ended_well_evidence_is_kept(end: RunEnd, tmp_path: Path) -> None:
    for node, ranks in enumerate(((0, 1), (2,))):
        found = [rank(each, code=0, summary={"data": 0.0}) for each in ranks]
        end.ended(node, evidence(*found, reason="end"), (), ())
    assert end.outcome().exit_code == 0
    kept = read_evidence(tmp_path, "end")
    assert kept is not None
    assert [each.rank for each in kept.ranks] == [0, 1, 2]

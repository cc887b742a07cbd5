"""What is told about the end of a run on several hosts, from what their agents have said."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from ronde.launch.agent_link import AgentLink, News
from ronde.launch.frames import Kind
from ronde.launch.hosts_end import HostsEnd
from ronde.launch.job import Job
from ronde.trace.run_directory import RunDirectory

WAITED = "the run stood still for 6 s and has been ended (--timeout)\n{}if they were right ..."


@pytest.fixture
def end(tmp_path: Path) -> Any:
    directory = RunDirectory(path=tmp_path, run_id="1")
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    links = [
        AgentLink(index, name, first, ranks, news=news, show=lambda *_: None)
        for index, name, first, ranks in ((0, "one", 0, 2), (1, "two", 2, 1))
    ]
    job = Job(ranks=3, run_directory=directory, environment={}, script="x.py", shown=False)
    return HostsEnd(job, links, lambda: False), links


def test_clocks_of_hosts_differ_but_not_who_was_first(end: Any) -> None:
    told, _ = end
    told.take_news(Kind.DEATH, {"rank": 0, "time": 105.0, "code": -9}, 0.0)
    told.take_news(Kind.DEATH, {"rank": 2, "time": 900.0, "code": 3}, 800.0)  # at 100 by our clock
    outcome = told.outcome()
    assert outcome.exit_code == 3
    assert outcome.report.startswith("rank 2 on two exited with code 3; logs of all ranks: ")


def test_a_lost_host_is_told_unless_a_rank_failed_before(end: Any) -> None:
    told, links = end
    told.take_loss(links[1], ["Connection to two closed by remote host.", ""], 255)
    told.take_news(Kind.ERROR, error(0, "peer", time=0.0), 0.0)  # it only lost its peer
    assert told.outcome().report.startswith(
        "the connection to two is lost (Connection to two closed by remote host.), and with it rank 2; see"
    )
    told.take_news(Kind.ERROR, error(1, "script", time=0.0), 0.0)
    assert told.outcome().report.startswith("rank 1 on one failed: ValueError: x; logs")


def test_a_standstill_has_the_places_of_all_hosts(end: Any) -> None:
    told, links = end
    told.take_last(links[1], {"standstill": WAITED.format("  rank 2 waits at x.py:8: all_reduce\n")})
    assert told.stood_still
    told.take_last(links[0], {"places": "  rank 0 is at x.py:7, in f\n  rank 1 is at x.py:7, in f\n"})
    lines = told.outcome().report.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["rank", "0"], ["rank", "1"], ["rank", "2"]]
    assert lines[4] == "if they were right ..."


def test_interrupted_by_the_user(end: Any) -> None:
    told, links = end
    told.interrupt(2, again=False)
    told.take_news(Kind.DEATH, {"rank": 2, "time": 1.0, "code": -2}, 0.0)
    told.take_last(links[0], {"exit_code": 7})  # rank 0 has handled it
    outcome = told.outcome()
    assert (outcome.exit_code, outcome.report) == (7, "")


def error(rank: int, kind: str, *, time: float) -> dict[str, Any]:
    names = {"type": "ValueError", "message": "x", "traceback": "Traceback ...", "advice": ""}
    return {"rank": rank, "time": time, "kind": kind, **names}

"""Evidence and explanations in files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ronde.trace.evidence import (
    Collective,
    Evidence,
    Failure,
    HostFacts,
    ProcessFacts,
    RankEvidence,
    evidence_path,
    merged,
    read_evidence,
    write_evidence,
)
from ronde.trace.explanation import Explanation, read_explanation, write_explanation

RANK = RankEvidence(
    rank=1,
    process=ProcessFacts(pid=7, state="S", cpu=0.5),
    stack="Thread 1\n",
    error={"type": "ValueError"},
    collectives=(Collective(group="reducer", number=3, what="a", where="b", entered=1.0, left=None),),
    children=(ProcessFacts(pid=8),),
    log=("one", "two"),
)


def evidence(directory: Path) -> Evidence:
    return Evidence(
        run_directory=str(directory),
        reason="failure",
        time=5.0,
        ranks=(RANK,),
        hosts=(HostFacts(cores=2, kernel=("a line",)),),
        failure=Failure(rank=1, kind="script", exit_code=1),
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    given = evidence(tmp_path)
    write_evidence(given)
    assert read_evidence(tmp_path, "failure") == given
    assert (tmp_path / "evidence" / "failure-rank-1.stack.txt").read_text() == RANK.stack
    assert read_evidence(tmp_path, "stall") is None


def test_evidence_of_older_runs_has_one_host(tmp_path: Path) -> None:
    given = json.loads(evidence(tmp_path).to_json())
    given["host"] = given.pop("hosts")[0]
    assert Evidence.from_fields(given) == evidence(tmp_path)


def test_evidence_of_nodes_becomes_that_of_the_run(tmp_path: Path) -> None:
    """Ranks keep their numbers, and the host of each is found."""
    one = Evidence(
        run_directory="/one",
        reason="stall",
        time=9.0,
        ranks=tuple(RankEvidence(rank=rank, process=ProcessFacts(pid=rank)) for rank in (1, 3)),
        hosts=(HostFacts(name="one", cores=1),),
    )
    two = dataclasses.replace(
        one,
        time=8.0,
        ranks=tuple(RankEvidence(rank=rank, process=ProcessFacts(pid=rank)) for rank in (2, 0)),
        hosts=(HostFacts(name="two", cores=2),),
    )
    found = merged([one, two], tmp_path)
    assert (found.run_directory, found.reason, found.time) == (str(tmp_path), "stall", 8.0)
    assert [each.rank for each in found.ranks] == [0, 1, 2, 3]
    assert [found.host_of(each).name for each in found.ranks] == ["two", "one", "two", "one"]
    assert Evidence.from_json(found.to_json()) == found
    assert merged([found], tmp_path) == found


def test_a_folder_that_cannot_be_written_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("a file is in the way")
    write_evidence(evidence(tmp_path))
    write_explanation(Explanation(cause="killed", rank=1, summary="x"), tmp_path)
    assert read_explanation(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ranks": []}', '{"ranks": [{}], "host": {}}'])
def test_what_is_no_evidence_is_none(tmp_path: Path, text: str) -> None:
    path = evidence_path(tmp_path, "stall")
    path.parent.mkdir()
    path.write_text(text)
    assert read_evidence(tmp_path, "stall") is None


def test_an_explanation_is_read_as_it_was(tmp_path: Path) -> None:
    given = Explanation(cause="killed", rank=1, summary="rank 1 was killed", evidence=("a", "b"), fix="ask")
    write_explanation(given, tmp_path)
    assert read_explanation(tmp_path) == given
    assert given.lines() == ["cause: rank 1 was killed", "  a", "  b", "fix: ask"]

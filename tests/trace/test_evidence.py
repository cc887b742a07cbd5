"""Evidence and explanations in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.trace.evidence import (
    Collective,
    Evidence,
    Failure,
    Host,
    Process,
    RankEvidence,
    evidence_path,
    read_evidence,
    write_evidence,
)
from ronde.trace.explanation import Explanation, read_explanation, write_explanation

RANK = RankEvidence(
    rank=1,
    process=Process(pid=7, state="S", cpu=0.5),
    stack="Thread 1\n",
    error={"type": "ValueError"},
    collectives=(Collective(group="reducer", number=3, what="a", where="b", entered=1.0, left=None),),
    children=(Process(pid=8),),
    log=("one", "two"),
)


def evidence(directory: Path) -> Evidence:
    return Evidence(
        run_directory=str(directory),
        reason="failure",
        time=5.0,
        ranks=(RANK,),
        host=Host(cores=2, kernel=("a line",)),
        failure=Failure(rank=1, kind="script", exit_code=1),
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    given = evidence(tmp_path)
    write_evidence(given)
    assert read_evidence(tmp_path, "failure") == given
    assert (tmp_path / "evidence" / "failure-rank-1.stack.txt").read_text() == RANK.stack
    assert read_evidence(tmp_path, "stall") is None


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
    assert given.lines() == ["cause: rank 1 was killed", "  a", "  b", "to mend it: ask"]

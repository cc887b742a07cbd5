"""Words about runs of a proof that take long."""

from __future__ import annotations

import threading
from pathlib import Path

from ronde.verify.long_runs import told_of, words_on
from ronde.verify.runs import Job, Start

WAIT = """hello
ronde: note[R200]: ranks have waited for 8 s; the run is ended after 1800 s of this (--timeout)
  rank 0 waits at train.py:3: all_gather
  rank 1 has not begun the script
cause: rank 1 computes
"""


def _start(place: Path, ranks: int | None) -> Start:
    return Start(job=Job(script="train.py"), ranks=ranks, place=place, directory=place, environment={})


def test_a_run_tells_of_its_steps(tmp_path: Path) -> None:
    assert words_on(_start(tmp_path, 8), 40.2) == (
        "train.py has run on 8 ranks for 40 s, 0 of 20 optimizer steps"
    )
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "rank-0.events").write_text('{"kind": "read"}\n{"kind": "step", "a": 1}\n')
    assert words_on(_start(tmp_path, None), 10.0) == (
        "train.py has run in plain python for 10 s, 1 of 20 optimizer steps"
    )


def test_a_run_tells_of_ranks_that_wait_and_goes_on_telling(tmp_path: Path) -> None:
    said: list[str] = []
    told = threading.Semaphore(0)

    def say(words: str) -> None:
        said.append(words)
        told.release()

    def run(start: Start) -> int:
        (start.place / "stderr").write_text(WAIT)
        for _ in range(3):
            assert told.acquire(timeout=60)
        return 3

    assert told_of(run, say, first=0.01)(_start(tmp_path, 2)) == 3
    waits = [words for words in said if "R200" in words]
    assert waits == [
        "ranks have waited for 8 s; the run is ended after 1800 s of this\n"
        "  rank 0 waits at train.py:3: all_gather\n"
        "  rank 1 has not begun the script [R200]"
    ]
    assert all(words.startswith("train.py has run on 2 ranks for ") for words in said if words not in waits)

"""What the page is told of a run."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from made_run import WALL, made_run
from ronde.report.document import document, encoded
from ronde.report.lanes import excerpt, write_excerpt
from ronde.report.run import look_at_run
from ronde.trace.events import events_path, write_event
from ronde.trace.evidence import evidence_path
from ronde.trace.explanation import Explanation, write_explanation
from ronde.trace.run_directory import RunDirectory
from ronde.trace.spans import Span


def told(folder: Path) -> dict[str, Any]:
    return json.loads(encoded(document(look_at_run(folder))))


def test_a_straggler_is_named(tmp_path: Path) -> None:
    verdict = told(made_run(tmp_path / "run", ranks=4, slow=2))["stragglers"]["verdict"]
    assert "Rank 2 stands out: it came last to 75% of its collectives" in verdict
    assert "No rank stands out" in told(made_run(tmp_path / "other", ranks=4))["stragglers"]["verdict"]
    assert told(made_run(tmp_path / "one", ranks=1))["stragglers"]["verdict"] == "One rank: nobody waits."


def test_a_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    tiles = {name: note for name, _, note in told(made_run(tmp_path / "run", nan_from=120))["tiles"]}
    assert tiles["Loss"] == "not a number at step 120"


def test_of_many_ranks_those_that_stand_out_are_drawn(tmp_path: Path) -> None:
    page = told(made_run(tmp_path / "run", ranks=40, steps=50))
    assert len(page["phases"]["rows"]) == len(page["stragglers"]["rows"]) == 32
    assert [line["name"] for line in page["memory"]["lines"]] == ["highest of 40 ranks", "median", "lowest"]
    assert len(page["ranks"]) == 40
    assert len(page["timeline"]["lanes"]) == 16


def test_a_long_run_has_a_small_document(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", ranks=1, steps=9000)
    assert len(encoded(document(look_at_run(folder)))) < 60_000
    assert told(folder)["folded"] == 4


def test_how_a_run_has_ended(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", ended=False)
    assert told(folder)["life"] == "gone"
    assert "ronde doctor" in told(folder)["cause"]["fix"]
    write_event(folder, "end", "rank 1 was killed by SIGKILL", exit_code=137)
    assert told(folder)["life"] == "failed"
    assert told(folder)["cause"]["summary"] == "rank 1 was killed by SIGKILL"
    cause = Explanation(cause="x", rank=1, summary="the host ran out of memory", fix="take less", host="b")
    write_explanation(cause, folder)
    assert told(folder)["cause"] == {
        "summary": "the host ran out of memory", "evidence": ["rank 1 is on b"], "fix": "take less",
    }  # fmt: skip
    write_event(folder, "end", "exit code 0", exit_code=0)
    assert (told(folder)["life"], told(folder)["cause"]) == ("ended", None)


def test_a_run_is_not_over_while_its_launcher_explains_the_end(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", {})
    folder = made_run(directory.path, ended=False)
    assert told(folder)["life"] == "runs"
    directory.release()
    assert told(folder)["life"] == "gone"


def test_a_stall_that_is_over_is_no_cause(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", {})
    folder = made_run(directory.path, ended=False)
    write_explanation(Explanation(cause="x", rank=None, summary="all wait"), folder)
    assert told(folder)["cause"]["summary"] == "all wait"
    os.utime(evidence_path(folder, "explanation"), (WALL / 1e9, WALL / 1e9))
    assert told(folder)["cause"] is None
    directory.release()


def test_a_run_before_its_first_step_is_told(tmp_path: Path) -> None:
    write_event(tmp_path, "start", "a.py", script="a.py", ranks=2)
    page = told(tmp_path)
    assert (page["title"], page["facts"], page["tiles"], page["ranks"]) == ("a.py", ["2 ranks"], [], [])


def test_checkpoints_are_listed_with_what_is_left_of_them(tmp_path: Path) -> None:
    folder, saved = made_run(tmp_path / "run"), tmp_path / "saved"
    (saved / "step-00000200").mkdir(parents=True)
    for step in (100, 200):
        write_event(folder, "checkpoint", "", step=step, held_up=0.01, nbytes=5, folder=str(saved))
    found = told(folder)["checkpoints"]
    assert [(each["step"], each["kept"], each["bytes"]) for each in found] == [
        (100, False, 5),
        (200, True, 5),
    ]


def test_deaths_are_events_with_their_rank(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", ended=False)
    error = {"rank": 1, "time": WALL / 1e9 + 2, "kind": "script", "type": "ValueError"}
    error |= {"message": "no rows", "traceback": ""}
    (folder / "rank-1.error.json").write_text(json.dumps(error))
    page = told(folder)
    assert page["life"] == "failed"
    assert [each["life"] for each in page["ranks"]] == ["gone", "failed"]
    assert page["cause"]["summary"] == "rank 1: ValueError: no rows"
    assert [(each["text"], each["at"]) for each in page["events"] if each["kind"] == "death"] == [
        ("rank 1: ValueError: no rows", 2.0)
    ]


def test_the_last_steps_are_a_timeline(tmp_path: Path) -> None:
    timeline = told(made_run(tmp_path / "run", slow=1))["timeline"]
    assert not timeline["traced"]
    quick, slow = timeline["lanes"]
    assert quick["spans"][0] == ["data", 0, 0.001, 289]
    assert [span[0] for span in quick["spans"][:6]] == [
        "data", "forward", "backward", "optimizer", "communication", "other",
    ]  # fmt: skip
    assert quick["spans"][-1][2] == slow["spans"][-1][2] == 0.12


def test_a_traced_run_shows_some_of_its_spans(tmp_path: Path) -> None:
    spans = [Span("step", n * 1000, n * 1000 + 900, n) for n in range(1, 20)]
    spans += [Span("forward", n * 1000, n * 1000 + 500, n) for n in range(1, 20)]
    spans += [
        Span("wait", 2000, 2100, 2),
        Span("all_reduce", 2000, 2200, 2, 64),
        Span("other", 2500, 2600, 2),
    ]
    (lane,) = excerpt({3: spans})
    assert lane["name"] == "rank 3"
    assert [span[3] for span in lane["spans"]] == [2, 3, 4, 5, 6, 7, 2]
    assert lane["spans"][-1] == ["communication", 0, 1e-07, 2]
    assert lane["collectives"] == [["all_reduce", 0, 2e-07, 64]]
    folder = made_run(tmp_path / "run")
    write_excerpt(folder, {3: spans})
    assert told(folder)["timeline"]["traced"]
    (folder / "spans.json").write_text("half of")
    assert not told(folder)["timeline"]["traced"]


def test_events_of_an_earlier_attempt_come_before_the_beginning(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    line = {"time": WALL / 1e9 - 60, "kind": "restart", "text": "once more", "rank": None}
    with events_path(folder).open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    assert told(folder)["events"][0]["at"] == -60


def test_ranks_of_two_clocks_are_one_run(tmp_path: Path) -> None:
    run = look_at_run(made_run(tmp_path / "run"))
    later = dataclasses.replace(run.ranks[1].steps, offset=5_000_000_000)
    moved = dataclasses.replace(run, ranks=(run.ranks[0], dataclasses.replace(run.ranks[1], steps=later)))
    page = document(moved)
    assert page["throughput"]["x"][-1] == 8.0
    assert page["shares"]["values"][0][0] == page["shares"]["values"][0][-1] == 0.1

"""The timeline in the form of Chrome's trace viewer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from nesting import check_nesting
from ronde.cli import main
from ronde.report.timeline import nested, trace_events, write_timeline
from ronde.trace.spans import Span, SpanFile, read_spans, spans_path


def test_a_span_that_reaches_out_is_cut() -> None:
    step = Span("step", 0, 100, 1)
    found = nested([Span("wait", 90, 105, 1), Span("forward", 0, 95, 1), step])
    assert found == [step, Span("forward", 0, 95, 1), Span("wait", 90, 95, 1)]


def test_ranks_are_on_one_clock() -> None:
    spans = {0: [Span("step", 1000, 3000, 1)], 1: [Span("step", 51_000, 54_000, 1), Span("other", 0, 9, 1)]}
    events = list(trace_events(spans, {0: 0, 1: -50_000}))
    steps = [event for event in events if event["ph"] == "X"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in steps] == [(0, 51.0, 2.0), (1, 51.0, 3.0)]


def test_collectives_have_their_bytes_and_a_track_of_their_own() -> None:
    events = list(trace_events({0: [Span("all_reduce", 5, 9, 2, 64)]}, {0: 0}))
    begin, end = (event for event in events if event["ph"] in "be")
    assert begin["args"] == {"bytes": 64, "step": 2}
    assert (begin["id"], begin["tid"]) == (end["id"], end["tid"])
    assert end["ts"] - begin["ts"] == pytest.approx(0.004)


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_the_file_is_one_document_and_parts_are_gone(tmp_path: Path, name: str) -> None:
    for rank in (0, 1):
        file = SpanFile(spans_path(tmp_path, rank))
        file.add("forward", 10, 20, 1)
        file.add("step", 5, 30, 1)
        file.close()
    assert write_timeline(tmp_path, 3, tmp_path / name) == 4  # the third rank has left none
    data = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    check_nesting(events)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_spans_are_bounded_and_half_of_one_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ronde.trace.spans.MOST_SPANS", 3)
    file = SpanFile(tmp_path / "spans")
    for place in range(5):
        file.add("a name that is rather long", place, place + 1, 1)
    file.close()
    with (tmp_path / "spans").open("ab") as stream:
        stream.write(b"half")
    assert [each.name for each in read_spans(tmp_path / "spans")] == ["a name that is r"] * 3


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--trace-steps", "1:2"], "add --trace FILE"),
        (["--trace", "t.json", "--trace-steps", "2:1"], "no range of steps"),
        (["--trace", "no/such/folder/t.json"], "cannot be written there"),
        (["--trace", "t.json", "--native"], "leave out --native"),
    ],
)
def test_a_timeline_that_cannot_be_is_refused(
    options: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    with pytest.raises(SystemExit) as ended:
        main(["run", "--run-dir", "logs", *options, "train.py"])
    assert ended.value.code == 2
    assert word in capsys.readouterr().err

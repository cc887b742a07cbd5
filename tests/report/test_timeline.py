"""The timeline in the form of Chrome's trace viewer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from nesting import check_nesting
from ronde.cli import main
from ronde.report.timeline import nested, trace_events, write_timeline
from ronde.trace.launch_record import LaunchedNode, LaunchRecord, write_launch_record
from ronde.trace.spans import Span, SpanFile, read_spans, spans_path


def test_a_span_that_reaches_out_is_cut() -> None:
    step = Span("step", 0, 100, 1)
    found = nested([Span("wait", 90, 105, 1), Span("forward", 0, 95, 1), step])
    assert found == [step, Span("forward", 0, 95, 1), Span("wait", 90, 95, 1)]


def test_ranks_of_hosts_are_on_one_clock_and_its_error_is_told(tmp_path: Path) -> None:
    """The second host's clock is 2 s ahead, and goes on to be 1 ms more so in each second."""
    for rank, begin in ((0, 10_000_000_000), (1, 12_001_001_001)):
        file = SpanFile(spans_path(tmp_path, rank))
        file.add("step", begin, begin + 5000, 1)
        file.close()
    nodes = [
        LaunchedNode(name="one", run_id="a", pids={0: 1}, error=1e-5),
        LaunchedNode(
            name="two", run_id="b", pids={1: 2}, monotonic=-2.0, compared=11.0, drift=-1e-3, error=2e-5
        ),
    ]
    record = LaunchRecord(run_id="x", host="one", launcher=1, script="a.py", plan="ddp", nodes=nodes)
    write_launch_record(tmp_path / "launch.json", record)
    made = write_timeline(tmp_path, tmp_path / "t.json")
    assert (made.spans, made.hosts) == (2, 2)
    assert made.error == pytest.approx(3e-5)
    written = json.loads((tmp_path / "t.json").read_text())
    begins = [event["ts"] for event in written["traceEvents"] if event["ph"] == "X"]
    assert begins[1] - begins[0] == pytest.approx(0, abs=0.2)
    names = [event["args"]["name"] for event in written["traceEvents"] if event["name"] == "process_name"]
    assert names == ["rank 0 on one", "rank 1 on two"]
    assert written["otherData"]["largest error between two hosts"] == "0.030 ms"
    assert written["otherData"]["error of two"] == "0.020 ms"


def test_collectives_have_their_bytes_and_a_track_of_their_own() -> None:
    events = list(trace_events({0: [Span("all_reduce", 5, 9, 2, 64)]}, {}))
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
    assert write_timeline(tmp_path, tmp_path / name) == (4, 0, 0)
    data = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    check_nesting(events)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["spans.json", name]


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
        (["--trace", "t.json", "--trace-steps", "2:1"], "not a range of steps"),
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

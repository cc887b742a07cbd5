"""The view in the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from made_run import made_run
from ronde.cli import main
from ronde.report import live
from ronde.report.live import watch
from ronde.trace.events import write_event
from ronde.trace.launch_record import LaunchedNode, LaunchRecord, write_launch_record
from ronde.trace.run_directory import RunDirectory
from ronde.trace.waiting import write_waiting


def drawn(folder: Path, width: int = 100, **options: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False, highlight=False)
    watch(folder, every=0.01, once=options.get("once", True), console=console)
    return stream.getvalue()


def test_a_frame_has_a_line_for_each_rank(tmp_path: Path) -> None:
    text = drawn(made_run(tmp_path / "run", slow=1))
    lines = text.splitlines()
    assert lines[0].split("  ") == [
        "train.py", "ended", "3 s", "plan ddp", "2 of 2 ranks", "100 steps/s", "3,200 samples/s",
    ]  # fmt: skip
    assert lines[1].split() == "rank step phase last steps data waits memory last late/step".split()
    assert lines[2].split() == ["0", "300", "ended", "█" * 16, "10%", "20%", "300", "MiB", "0%", "0", "ms"]
    assert lines[3].split() == ["1", "300", "ended", "█" * 16, "10%", "0%", "301", "MiB", "75%", "1", "ms"]
    assert "loss" in text
    assert "at step 300" in text


def test_for_what_a_rank_elsewhere_waits_is_shown(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", {})  # a launcher holds it
    folder = made_run(directory.path, ended=False)
    nodes = [LaunchedNode(name=name, run_id=name, pids={rank: 7}) for rank, name in enumerate(("one", "two"))]
    record = LaunchRecord(
        run_id="x", host="one", launcher=1, script="a.py", plan="ddp", nodes=nodes, by_agents=True
    )
    write_launch_record(directory.launch, record)
    write_waiting(folder, {1: "all_reduce"})
    _, _, first, second, *_ = drawn(folder, 140).splitlines()
    assert "waits" not in first
    assert "waits: all_reduce" in second
    directory.release()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    folder = made_run(tmp_path / "run", ranks=3, script="a/rather/long/path/to/a/script.py")
    write_event(folder, "notice", "rank 2 has waited for 60 s " * 5)
    for line in drawn(folder, width).splitlines():
        assert len(line) <= width


def test_a_run_that_is_over_ends_the_view(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, highlight=False)
    watch(made_run(tmp_path / "run"), every=0.01, once=False, console=console)
    assert "ended" in stream.getvalue()


def test_ctrl_c_ends_the_view_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_run(tmp_path / "run")

    class Running:
        life = "runs"

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    frames = []
    monkeypatch.setattr(live, "read_run", lambda path: Running)
    monkeypatch.setattr(live, "frame", lambda run, width: frames.append(run) or "picture")
    monkeypatch.setattr(live.time, "sleep", interrupted)
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, _environ={"TERM": "xterm"})
    watch(folder, every=1, once=False, console=terminal)
    assert frames
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is shown again


def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", "--every", "0"])
    assert ended.value.code == 2
    assert "--every 0" in capsys.readouterr().err

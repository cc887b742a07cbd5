"""What two real ranks write down, and what is shown of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nesting import check_nesting
from ronde.cli import main
from ronde.report.document import document
from ronde.report.figures import RunFigures, figures_of
from ronde.report.page import frozen_page
from ronde.report.run import read_run
from ronde.testing import forked
from ronde.trace.events import read_events
from ronde.trace.step_file import StepsOfRank, read_steps, steps_path

SCRIPT = """
import os, signal, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(96, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        print(f"{loss:.6f}", flush=True)
    with torch.no_grad():
        torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True)).item()
    if epoch == 0 and "kill" in sys.argv:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(SCRIPT)
    command = [
        "run",
        "--ranks",
        "2",
        "--run-dir",
        "logs",
        "--trace",
        "t.json",
        "--trace-steps",
        "3:9",
        "train.py",
    ]
    done = forked.run(command, directory=folder)
    assert done.returncode == 0, done.stderr
    read = read_run(folder / "logs")
    ranks = [read_steps(steps_path(folder / "logs", rank)) for rank in range(2)]
    return SimpleNamespace(folder=folder, done=done, run=read, ranks=ranks, figures=figures_of(read))


def test_every_step_is_there_with_the_loss_that_the_script_read(run: SimpleNamespace) -> None:
    printed = [float(line) for line in run.done.stdout.split()]
    for rank in run.ranks:
        assert (rank.steps, rank.samples, rank.ended) == (12, 192, True)
        assert [each.step for each in rank.recent] == list(range(1, 13))
        assert [each.loss for each in rank.recent] == pytest.approx(printed, abs=1e-5)
        assert [each.losses for each in rank.recent] == [1] * 12


def test_phases_bytes_and_memory_are_known(run: SimpleNamespace) -> None:
    ranks: Sequence[StepsOfRank] = run.ranks
    figures: RunFigures = run.figures
    for rank, found in zip(ranks, figures.ranks):
        assert (found.spent > 0).all()
        assert found.spent.sum() == pytest.approx((rank.course[-1].ended - rank.course[0].begun) / 1e9)
        gradients = 4 * (6 * 32 + 32 + 32 + 1)
        assert all(each.sent[0] >= gradients and each.collectives for each in rank.recent)
        assert set(found.routes()) == {"shared memory"}
        assert rank.course[-1].resident > 50 << 20
    assert sum(each.last for rank in ranks for each in rank.course) > 0
    assert ranks[0].course[-1].ended < run.run.now


def test_the_run_is_told_as_one_that_has_ended(run: SimpleNamespace) -> None:
    assert [each.life for each in run.run.ranks] == ["ended", "ended"]
    assert [event.kind for event in read_events(run.folder / "logs")] == ["start", "end"]
    assert (run.run.start["script"], run.run.start["plan"]) == ("train.py", "ddp")
    told = document(run.run, run.figures)
    assert "samples/s, from the second step on" in [note for _, _, note in told["tiles"]]
    assert told["timeline"]["traced"]
    assert [lane["name"] for lane in told["timeline"]["lanes"]] == ["rank 0", "rank 1"]
    for rank, found in zip(run.run.ranks, run.figures.ranks):
        pace = found.pace
        assert pace is not None
        assert rank.summary is not None
        assert rank.summary.communication == pytest.approx(pace.communication_share, abs=0.02)
        assert rank.summary.steps_per_second == pytest.approx(pace.steps_per_second, rel=0.02)
    assert "shared memory (all ranks are on one host)" in told["routes"]["told"]


def test_one_picture_for_pipes(run: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", str(run.folder / "logs"), "--once"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert [line.split()[:3] for line in shown.splitlines()[2:4]] == [
        ["0", "12", "ended"],
        ["1", "12", "ended"],
    ]
    assert "\x1b" not in shown


def test_the_timeline_has_every_rank_on_one_clock(run: SimpleNamespace) -> None:
    events: list[dict[str, Any]] = json.loads((run.folder / "t.json").read_text())["traceEvents"]
    check_nesting(events)
    first = run.ranks[0].recent[2].begun / 1e3
    for rank in run.ranks:
        own = [event for event in events if event["pid"] == rank.rank and event["ph"] != "M"]
        steps = [event for event in own if event.get("cat") == "step"]
        assert [event["name"] for event in steps] == [f"step {number}" for number in range(3, 10)]
        for event, record in zip(steps, rank.recent[2:9], strict=True):
            assert event["dur"] == pytest.approx((record.ended - record.begun) / 1e3, abs=0.01)
        # On the clock of the records: apart from each other as these are.
        assert steps[-1]["ts"] - steps[0]["ts"] == pytest.approx(
            (rank.recent[8].begun - rank.recent[2].begun) / 1e3, abs=0.01
        )
        length = max(event["ts"] + event.get("dur", 0) for event in own)
        assert first + length < run.run.now / 1e3
        assert {"data", "forward", "backward", "optimizer", "wait"} <= {event["name"] for event in own}
        collectives = [event for event in own if event["ph"] == "b"]
        assert max(event["args"]["bytes"] for event in collectives) >= 4 * (6 * 32 + 32 + 32 + 1)
    assert not list((run.folder / "logs").glob("*.spans"))
    assert "a timeline of" in run.done.stderr


@pytest.mark.soak
def test_a_rank_that_was_killed_has_left_its_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["run", "--ranks", "2", "--run-dir", "logs", "--trace", "t.json", "train.py", "kill"]
    done = forked.run(command, directory=tmp_path)
    assert done.returncode == 137
    found = read_run(tmp_path / "logs")
    assert [each.steps.steps for each in found.ranks] == [6, 6]
    assert found.life == "failed"
    assert "SIGKILL" in document(found)["cause"]["summary"]
    assert "SIGKILL" in frozen_page([found])
    check_nesting(json.loads((tmp_path / "t.json").read_text())["traceEvents"])

"""Checkpoints of a run on hosts that share no file system lie in the launcher's folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from apart import command_apart
from checkpoint.test_cut_models import close, train, write
from ronde.trace.checkpoint_manifest import checkpoints_in


def on_hosts(place: Path, plan: str, last: int, *options: str) -> list[str]:
    run_dir = place / "run"
    command = command_apart([place / "saved", run_dir])
    words = [sys.executable, "-m", "ronde", "run", "-H", "127.0.0.1:2,127.0.0.2:2", "--ssh-command", command]
    words += ["--plan", plan, "--run-dir", str(run_dir), "--checkpoint", "saved", "--every", "1", *options]
    done = subprocess.run(
        [*words, "train.py", str(last)], cwd=place, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1, 127.0.0.2 do not see" in done.stderr
    return done.stdout.splitlines()


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plans", [("zero3", "data=2,tensor=2"), ("data=2,tensor=2", "zero3")])
def test_it_goes_on_there_and_on_one_host(tmp_path: Path, plans: tuple[str, str]) -> None:
    alone, apart = write(tmp_path / "alone"), write(tmp_path / "apart")
    expected = train(alone, 1, "ddp", 15, "--seed", "3").splitlines()
    said = on_hosts(apart, plans[0], 5, "--seed", "3")
    assert said == expected[:5]
    assert [step for step, _ in checkpoints_in(apart / "saved")] == [4, 3]
    # Nothing of it is left where ranks were, and nothing but checkpoints came.
    assert sorted(path.name for path in (apart / "saved").iterdir()) == [
        "journal",
        "step-00000003",
        "step-00000004",
    ]
    said = on_hosts(apart, plans[1], 10, "--resume")
    assert said == expected[4:10]
    said = train(apart, 2, "ddp", 15, "--checkpoint", "saved", "--resume").splitlines()
    assert said == expected[9:15]
    close(torch.load(alone / "end.pt"), torch.load(apart / "end.pt"))

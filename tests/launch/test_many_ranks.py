"""Many ranks on many hosts, all of them this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from apart import command_apart
from ronde.doctor.run import examine
from ronde.report.run import read_run

SCRIPT = """
    import os, signal, sys
    import torch
    import ronde

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(512, 16)
    for step in range(10):
        if step == 5 and ronde.rank() == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
"""
HOSTS = 8


def started(place: Path, each: int, killed: int) -> subprocess.CompletedProcess[str]:
    # A rank's own memory is that of torch.
    if psutil.virtual_memory().available < HOSTS * each * 260 << 20:
        pytest.skip(f"{HOSTS * each} ranks need {HOSTS * each * 260 >> 10} GiB")
    (place / "train.py").write_text(textwrap.dedent(SCRIPT))
    names = ",".join(f"127.0.0.{number}:{each}" for number in range(1, HOSTS + 1))
    words = [sys.executable, "-m", "ronde", "run", "-H", names, "--ssh-command", command_apart([])]
    words += ["--seed", "1", "--run-dir", "run", "train.py", str(killed)]
    return subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=1200)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("each", [2, 8])
def test_they_start_train_and_end(tmp_path: Path, each: int) -> None:
    done = started(tmp_path, each, -1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss 0.")
    run = read_run(tmp_path / "run")
    assert [(rank.steps.steps, rank.life) for rank in run.ranks] == [(10, "ended")] * (HOSTS * each)
    nodes = json.loads((tmp_path / "run" / "launch.json").read_text())["nodes"]
    assert [len(node["pids"]) for node in nodes] == [each] * HOSTS


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("each", [2, 8])
def test_one_of_them_that_is_killed_is_named_as_among_two(tmp_path: Path, each: int) -> None:
    killed = 5 * each + 1
    done = started(tmp_path, each, killed)
    assert done.returncode == 137, done.stderr
    assert f"rank {killed} on 127.0.0.6 was killed by SIGKILL" in done.stderr
    assert f"cause: rank {killed} was killed from outside (SIGKILL)" in done.stderr
    _, found = examine(tmp_path / "run")
    assert (found.cause, found.rank) == ("killed", killed)

"""A rank is killed, or a host is lost, under each launcher: what is told, and the resumed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ronde.testing.hosts import Host, Network

from .launchers import LAUNCHERS, RONDE, Launcher, await_that, processes
from .training import curve

pytestmark = [pytest.mark.root, pytest.mark.cluster]

# Rank 2 is the one on the second host.
TRAINING = """
import os, signal, time, torch
from torch.utils.data import DataLoader, TensorDataset
import ronde

event = open("event").read()
torch.manual_seed(7)
data = TensorDataset(torch.randn(44, 6).double(), torch.randn(44, 3).double())
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(30):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.9f}", flush=True)
    if epoch >= 9 and event == "killed" and ronde.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if epoch >= 9 and event == "lost":
        time.sleep(1)
"""
OPTIONS = ["--checkpoint", "saved", "--every", "10"]


def cause(said: str) -> str:
    """The first cause that the user reads."""
    return next((line for line in said.splitlines() if line.startswith("cause:")), said)


@pytest.fixture(scope="module")
def told_on_one_host(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cause of the killed rank without other hosts."""
    place = tmp_path_factory.mktemp("one")
    (place / "train.py").write_text(TRAINING)
    (place / "event").write_text("killed")
    words = [*RONDE, "--ranks", "3", *OPTIONS, "train.py"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    return cause(done.stderr)


def start(network: Network, launcher: Launcher, log: Path, *words: str) -> subprocess.Popen[str]:
    """`ronde run` by this launcher on the first host; what it prints is in the log."""
    command = [*launcher.words, "--run-dir", "run", *OPTIONS, *words, "train.py"]
    environment = {**launcher.environment, "OMP_NUM_THREADS": "1"}
    with open(log, "w") as file:
        return network.hosts[0].popen(
            command, cwd=log.parent, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )


def kill(host: Host, daemons: Sequence[str]) -> None:
    """Kill processes of a host, by words of their command lines."""
    there = processes(host)
    for daemon in daemons:
        numbers = [number for number, words in there.items() if daemon in words]
        assert numbers, there
        for number in numbers:
            os.kill(number, signal.SIGKILL)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("event", ["killed", "lost"])
@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_is_told_and_the_resumed_run(
    network: Network, name: str, event: str, tmp_path: Path, told_on_one_host: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    plain, first, second = (tmp_path / f"{which}.log" for which in ("plain", "first", "second"))
    (tmp_path / "event").write_text("")
    with open(plain, "w") as file:
        subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, stdout=file)
    with LAUNCHERS[name](network, tmp_path) as launcher:
        (tmp_path / "event").write_text(event)
        process = start(network, launcher, first)
        if event == "lost":
            await_that(
                lambda: "epoch 10 " in first.read_text() or process.poll() is not None, first.read_text
            )
            kill(network.hosts[1], launcher.daemons)
        code = process.wait(100)
        said = first.read_text()
        assert code, said
        if event == "lost":
            assert launcher.lost in said
        else:
            assert cause(said) == told_on_one_host == "cause: rank 2 was killed from outside (SIGKILL)"
            assert "rank 2 on " in said
        left = list[str]()

        def is_all_gone() -> bool:
            left[:] = [
                words for host in network.hosts for words in processes(host).values() if "ronde." in words
            ]
            return not left

        await_that(is_all_gone, lambda: "\n".join(left))
        launcher.mend()
        (tmp_path / "event").write_text("")
        code = start(network, launcher, second, "--resume").wait(100)
        assert code == 0, second.read_text()
    assert "resumed at step " in second.read_text()
    assert curve(said + second.read_text()) == curve(plain.read_text())

"""A run on two hosts that loses one, goes on without it, and takes it in again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ronde.testing.hosts import Network

from .test_ssh import PORT, await_words, said, ssh, start
from .training import curve

__all__ = ["ssh"]

pytestmark = [pytest.mark.root, pytest.mark.cluster]

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
data = TensorDataset(torch.randn(44, 6).double(), torch.randn(44, 3).double())
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(250):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.9f}", flush=True)
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.timeout(240)
def test_a_host_is_lost_and_comes_back(network: Network, ssh: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = [sys.executable, "train.py", "0"]
    plain = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    options = ["-H", "host-1:2,host-2:1", "--ssh-port", PORT, "--ssh-command", ssh, "--run-dir", "run"]
    options += ["--checkpoint", "saved", "--every", "20", "--restarts", "2", "--min-ranks", "2"]
    process = start(network, tmp_path, *options, "train.py", "0.1")
    await_words(tmp_path, "epoch 40 ", process)
    network.hosts[1].cut()
    await_words(tmp_path, "going on with 2 ranks on host-1:2", process)
    await_words(tmp_path, "resumed at step ", process)
    network.hosts[1].mend()
    await_words(tmp_path, "going on with 3 ranks on host-1:2, host-2:1", process)
    assert process.wait(200) == 0, said(tmp_path)
    assert "the connection to host-2 is lost (" in said(tmp_path)
    assert said(tmp_path).count("resumed at step ") == 2
    assert curve(said(tmp_path)) == curve(plain.stdout)

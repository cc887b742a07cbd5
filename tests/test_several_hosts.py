"""`torchrun ... -m ronde run` on two hosts that are network namespaces of this one."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ronde.testing.hosts import Network

pytestmark = pytest.mark.root
PORT = "29400"

# In plain python it ends after the file is written; ranks go on until their hosts are parted.
TRAINING = """
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
double = {"dtype": torch.float64}
data = TensorDataset(torch.randn(44, 6, **double), torch.randn(44, 3, **double))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2 if __name__ == "plain" else 10**9):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if epoch < 2:
            print(f"loss {loss.item():.9f}", flush=True)
    if epoch == 1:
        torch.save(model.state_dict(), f"{__name__}.pt")
        print("under way", flush=True)
"""


def start(network: Network, ranks: Sequence[int], place: Path, *options: str) -> list[subprocess.Popen[str]]:
    """torchrun on each host with so many ranks; what the processes print is in `place`/HOST.log."""
    started = []
    for number, (host, count) in enumerate(zip(network.hosts, ranks, strict=True)):
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(ranks))]
        words += ["--node-rank", str(number), "--nproc-per-node", str(count)]
        words += ["--master-addr", network.hosts[0].address, "--master-port", PORT]
        words += ["-m", "ronde", "run", "--timeout", "4", *options, "train.py"]
        with open(place / f"{host.name}.log", "w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            started.append(host.popen(words, cwd=place, env=environment, stdout=log, stderr=log))
    return started


def said(place: Path, host: str) -> str:
    return (place / f"{host}.log").read_text()


def losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("loss ")]


def test_ranks_of_two_hosts_give_one_devices_numbers_and_name_a_host_that_is_cut_off(
    network: Network,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """One run for both: starting torchrun and three ranks takes longest."""
    (tmp_path / "train.py").write_text(TRAINING)
    started = start(network, (2, 1), tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("train.py", run_name="plain")
    while "under way" not in said(tmp_path, "host-1"):
        assert started[0].poll() is None, said(tmp_path, "host-1") + said(tmp_path, "host-2")
        time.sleep(0.05)
    assert "3 ranks on cpu, started by torchrun" in said(tmp_path, "host-1")
    assert losses(said(tmp_path, "host-1")) == losses(capsys.readouterr().out)
    ours, theirs = (torch.load(tmp_path / name) for name in ("__main__.pt", "plain.pt"))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value)

    network.hosts[1].cut()
    assert [process.wait(60) for process in started] == [1, 1]
    # Either rank of the other host may be the first that notices.
    lost = f"lost its connection to the host host-2 ({network.hosts[1].address}, rank 2)"
    assert any(f"rank {rank} {lost}" in said(tmp_path, "host-1") for rank in (0, 1))
    # Until then the observer of a host knows that its ranks wait, and for which host.
    for host, other in (("host-1", "host-2 (rank 2)"), ("host-2", "host-1 (ranks 0, 1)")):
        assert f"cause: all ranks of {host} wait for ranks of other hosts: {other}" in said(tmp_path, host)


@pytest.mark.soak
def test_parameters_in_parts_travel_between_hosts(
    network: Network,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "train.py").write_text(TRAINING.replace("10**9", "2"))
    started = start(network, (2, 1), tmp_path, "--plan", "zero3")
    monkeypatch.chdir(tmp_path)
    runpy.run_path("train.py", run_name="plain")
    assert [process.wait(timeout=240) for process in started] == [0, 0], said(tmp_path, "host-1")
    assert losses(said(tmp_path, "host-1")) == losses(capsys.readouterr().out)
    kept, plain = (torch.load(tmp_path / f"{name}.pt") for name in ("__main__", "plain"))
    assert kept.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(kept[name], value, rtol=1e-11, atol=1e-13)

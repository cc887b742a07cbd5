"""A small training whose losses are compared with those of plain python."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TRAINING = """
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
double = {"dtype": torch.float64}
data = TensorDataset(torch.randn(44, 6, **double), torch.randn(44, 3, **double))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 and __name__ == "__main__" else 2):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if epoch < 2:
            print(f"loss {loss.item():.9f}", flush=True)
    if epoch == 1:
        print("under way", flush=True)
    if epoch > 1:
        time.sleep(0.01)
"""


def plain_losses(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Write train.py into `place`, and what it prints of losses in plain python."""
    (place / "train.py").write_text(TRAINING)
    monkeypatch.chdir(place)
    capsys.readouterr()
    runpy.run_path("train.py", run_name="plain")
    return losses(capsys.readouterr().out)


def losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("loss ")]


def curve(text: str) -> dict[str, str]:
    """The loss of each epoch; one that was trained twice has to have it twice."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("epoch "):
            _, epoch, _, loss = line.split()
            assert found.setdefault(epoch, loss) == loss
    return found

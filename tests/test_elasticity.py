"""L7: the number of ranks may change at a checkpoint, and nothing else does; plain python may take over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ronde.verify.runs import Job, Start
from support.warm import WarmHost

SCRIPT = """
import os, sys, torch
from torch import nn
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(37, 6), torch.randint(0, 3, (37,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
kept = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
first = 0
if os.path.exists("checkpoint.pt"):
    state = torch.load("checkpoint.pt")
    for name, thing in kept.items():
        thing.load_state_dict(state[name])
    torch.set_rng_state(state["rng"])
    first = state["epoch"]
for epoch in range(first, int(sys.argv[1])):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(f"{epoch} {loss.item():.11f}")
    scheduler.step()
    state = {name: thing.state_dict() for name, thing in kept.items()}
    torch.save({**state, "rng": torch.get_rng_state(), "epoch": epoch + 1}, "checkpoint.pt")
"""


def plain(place: Path, until: int) -> str:
    run = subprocess.run(
        [sys.executable, "train.py", str(until)], cwd=place, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def on_ranks(host: WarmHost, place: Path, until: int, ranks: int) -> str:
    """Rank 0's output."""
    job = Job(script="train.py", arguments=(str(until),))
    kept = place.parent / f"{ranks}-ranks"
    kept.mkdir()
    code = host.start(Start(job=job, ranks=ranks, place=kept, directory=place, environment=os.environ))
    assert code == 0, (kept / "stderr").read_text()
    return (kept / "stdout").read_text()


@pytest.mark.soak
def test_the_number_of_ranks_may_change_at_a_checkpoint(host: WarmHost, tmp_path: Path) -> None:
    for name in ("plain", "ranks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(SCRIPT)
    place = tmp_path / "ranks"
    expected = plain(tmp_path / "plain", 3)
    found = on_ranks(host, place, 1, 2) + on_ranks(host, place, 2, 3) + plain(place, 3)
    assert found == expected
    assert found.count("\n") == 15

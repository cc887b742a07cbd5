"""Scripts that cannot run as they are, on real ranks: what the user reads behind their traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from errors.normal import normal
from ronde.verify.runs import Job, Start

TRAIN = """\
import torch
from torch.utils.data import DataLoader, Dataset
{before}
model = torch.nn.Linear(4, 2, device={device!r})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader({data}, 8):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DATA = "torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))"


def ended(host: Any, folder: Path, script: str) -> tuple[int, list[str]]:
    """The exit code on two ranks, and what the main rank says on stderr, line by line."""
    (folder / "train.py").write_text(script)
    place = folder / "place"
    place.mkdir()
    job = Job(script="train.py", directory=folder)
    code = host.start(Start(job=job, ranks=2, place=place, directory=folder, environment=os.environ))
    return code, normal((place / "stderr").read_text(), folder).splitlines()


def run(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [
        sys.executable,
        "-m",
        "ronde",
        "run",
        "--ranks",
        "2",
        "--run-dir",
        "logs",
        *options,
        "train.py",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_a_model_on_another_device(host: Any, tmp_path: Path) -> None:
    code, said = ended(host, tmp_path, TRAIN.format(before="", device="meta", data=DATA))
    assert code == 1
    assert said[:2] == ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>']
    assert said[-1] == (
        'ronde: what is on the device "meta" has no values: leave that device out of the script, or call '
        'model.to_empty(device="cpu") and load the parameters'
    )
    assert not any("/ronde/" in line for line in said)

"""`ronde verify`: its table, its JSON, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(6, 4)
    loss = torch.nn.functional.mse_loss(model(x), x[:, :2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.4f}")
"""


def verify(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ronde", "verify", *words]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=110)


def test_the_law_holds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = verify(
        tmp_path, "--ranks", "2", "--threads", "1", "--json", "proof.json", "--plot", "p.svg", "train.py"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == ("train.py on 2 ranks against plain python: plan ddp, float32, 3 optimizer steps")
    assert lines[-1] == "The law holds."
    assert "train.py on 2 ranks" in (tmp_path / "p.svg").read_text()
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert proof["holds"] is True
    assert proof["noise_floor"] is not None
    assert [(each["clause"], each["status"]) for each in proof["clauses"]] == [
        ("L1", "nothing"),
        *((clause, "holds") for clause in ("L2", "L3", "L4", "L5", "L6")),
    ]


def test_a_broken_law_is_exit_code_1(tmp_path: Path) -> None:
    # The script reads its own process number: no two processes give the same answer.
    (tmp_path / "train.py").write_text(SCRIPT.replace("lr=0.1", "lr=__import__('os').getpid() / 1e5"))
    done = verify(tmp_path, "--ranks", "2", "--threads", "1", "--dtype", "float64", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "L2 update     BROKEN" in done.stdout
    assert "first: rank 0, step 1 (SGD 1), parameter " in done.stdout
    assert done.stdout.endswith("The law is broken.\n")


def test_nothing_to_compare_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('not today')")
    done = verify(tmp_path, "train.py")
    assert done.returncode == 2
    assert "train.py fails in plain python (exit code 1)" in done.stderr
    assert "ValueError: not today" in done.stderr
    missing = verify(tmp_path, "other.py")
    assert missing.returncode == 2
    assert "there is no script 'other.py'" in missing.stderr

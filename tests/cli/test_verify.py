"""`ronde verify`: its table, its JSON, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ronde.cli.entry import main
from ronde.verify import proof, runs
from ronde.verify.record import Writer, read_record
from ronde.verify.runs import FinishedRun, Job
from support.warm import WarmHost

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


def test_the_law_holds(tmp_path: Path) -> None:
    """In processes of its own, as a user runs it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    words = "--ranks 2 --threads 1 --json proof.json --plot p.svg train.py".split()
    command = [sys.executable, "-m", "ronde", "verify", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == ("train.py on 2 ranks against plain python: plan ddp, float64, 3 optimizer steps")
    assert lines[-1] == "The law holds."
    assert "train.py on 2 ranks" in (tmp_path / "p.svg").read_text()
    told = json.loads((tmp_path / "proof.json").read_text())
    assert told["holds"] is True
    assert told["noise_floor"] is None  # nothing made it necessary
    assert told["not_in_double_precision"] == ""
    assert [(each["clause"], each["status"]) for each in told["clauses"]] == [
        ("L1", "nothing"),
        *((clause, "holds") for clause in ("L2", "L3", "L4", "L5", "L6")),
    ]


@pytest.fixture
def verified(
    host: WarmHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command in this process, with runs that need not import torch: its exit code and what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "spawn", host.start)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["verify", "--threads", "1", *words])
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


def test_a_broken_law_is_exit_code_1(verified: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    # The script does something else where it finds itself among ranks.
    among = "any(name.startswith('RONDE') for name in __import__('os').environ)"
    (tmp_path / "train.py").write_text(SCRIPT.replace("lr=0.1", f"lr=0.1, weight_decay=0.1 * {among}"))
    code, out, err = verified("--ranks", "2", "train.py")
    assert code == 1, out + err
    assert "L2 update     BROKEN" in out
    assert "first: rank 0, step 1 (SGD 1), parameter " in out
    assert out.endswith("The law is broken.\n")


def test_plain_python_that_does_not_repeat_itself_is_exit_code_2(
    verified: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    # The script reads its own process number: no two processes give the same answer.
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("lr=0.1", "lr=0.1, weight_decay=__import__('os').getpid() / 1e4")
    )
    code, out, err = verified("--ranks", "2", "train.py")
    assert (code, out) == (2, "")
    assert (
        "train.py: plain python does not repeat itself, so there is nothing to compare ranks with: two" in err
    )
    assert "differ in step 1 (SGD 1), parameter " in err


def test_nothing_to_compare_is_exit_code_2(
    verified: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('not today')")
    code, _, err = verified("train.py")
    assert code == 2
    assert "train.py fails in plain python (exit code 1)" in err
    assert "ValueError: not today" in err
    code, _, err = verified("other.py")
    assert code == 2
    assert "there is no script 'other.py'" in err


def test_a_refusal_is_no_broken_law(verified: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    layers = "torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))"
    (tmp_path / "train.py").write_text(SCRIPT.replace("torch.nn.Linear(4, 2)", layers))
    code, out, err = verified("--plan", "micro-batches=2", "train.py")
    assert (code, out) == (2, "")
    told = (
        "train.py does not run under the plan micro-batches=2, so there is nothing to compare: micro-batches"
    )
    assert err.startswith(
        f"ronde: error[R380]: {told} cannot give the single-device answer for a model with batch norm"
    )


def test_logs_that_are_gone_are_not_told_of(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.mkdir()
    Writer(str(record), 0)
    stderr = (
        "oh\nronde: rank 1 was killed by SIGSEGV; logs of all ranks: /gone/run\nlogs of all ranks: /gone\n"
    )
    run = FinishedRun(records=(read_record(record, 0),), files={}, stdout="", stderr=stderr, exit_code=139)
    found = proof.judge(Job(script="train.py"), run, run, ranks=2)
    assert found.failure == "oh\nronde: rank 1 was killed by SIGSEGV"

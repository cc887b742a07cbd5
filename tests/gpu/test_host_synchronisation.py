"""A step that reads nothing makes the host wait for no kernel: torch counts it, on one rank and on two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .where import CUDA

SCRIPT = Path(__file__).with_name("unread.py")


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("plan", ["ddp", "zero1", "zero2", "zero3", "precision=bf16", "zero3,recompute=full"])
def test_steps_of_ranks_synchronise_as_often_as_plain_torch(plan: str, ranks: int) -> None:
    environment = CUDA.environment(ranks)
    plain = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=200
    )
    assert plain.returncode == 0, plain.stderr
    words = ["run", "--ranks", str(ranks), "--plan", plan, "-q"]
    ours = subprocess.run(
        [sys.executable, "-m", "ronde", *words, SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout, ours.stderr

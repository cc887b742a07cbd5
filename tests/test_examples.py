"""The README's example: what it prints and saves on two ranks is what plain Python prints and saves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"


def train(output: Path, *launcher: str) -> tuple[str, dict[str, torch.Tensor]]:
    """An epoch in a folder of their own; what was printed, and the checkpoint."""
    output.mkdir()
    words = [sys.executable, *launcher, str(EXAMPLE), "--data", "digits", "--epochs", "1", "--output", "out"]
    done = subprocess.run(words, cwd=output, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, torch.load(output / "out" / "best.pt", weights_only=True)


@pytest.mark.soak
def test_digits_on_two_ranks_is_digits_on_one_device(tmp_path: Path) -> None:
    printed, weights = train(tmp_path / "plain")
    printed_by_ranks, weights_of_ranks = train(tmp_path / "ranks", "-m", "ronde", "run", "--ranks", "2")
    assert "accuracy" in printed
    assert printed_by_ranks == printed
    assert list(weights_of_ranks) == list(weights)
    for name, weight in weights.items():
        torch.testing.assert_close(
            weights_of_ranks[name], weight, rtol=1e-3, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
        )

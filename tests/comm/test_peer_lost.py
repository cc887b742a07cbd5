"""A rank that dies ends the others' waiting with an error that names it, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_rounds.py")


def kill(rounds: int, seed: int, folder: Path) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(rounds), str(seed), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_killed_rank_is_named_at_once(tmp_path: Path) -> None:
    assert kill(10, 0, tmp_path) == {"wrong": [], "left": []}


@pytest.mark.soak
def test_two_hundred_killed_ranks(tmp_path: Path) -> None:
    assert kill(200, 1, tmp_path) == {"wrong": [], "left": []}


@pytest.mark.soak
def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    assert kill(0, 0, tmp_path) == {"wrong": [], "left": []}

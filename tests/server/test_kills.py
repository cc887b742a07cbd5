"""Servers and workers are killed at random moments, and the training ends as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kills.changes import changes, reference
from benchmarks.kills.training import SERVERS, WORKERS, state_hash, train


def run(directory: Path, *, steps: int, kills: int, seed: int) -> None:
    expected = reference(steps, servers=SERVERS, workers=WORKERS)
    ended = train(directory, steps=steps, kills=kills, seed=seed)
    assert sum(ended.killed.values()) == kills
    assert ended.states == tuple(map(state_hash, expected))
    assert ended.records == (changes(steps),) * SERVERS
    assert (ended.lost, ended.twice) == (0, 0)


@pytest.mark.soak
def test_three_kills_change_nothing(tmp_path: Path) -> None:
    run(tmp_path, steps=12, kills=3, seed=33)  # a worker, soon after it a server, then the other worker


@pytest.mark.soak
def test_a_hundred_kills_change_nothing(tmp_path: Path) -> None:
    run(tmp_path, steps=800, kills=100, seed=1)

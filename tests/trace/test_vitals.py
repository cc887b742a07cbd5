"""A rank's signs of life: written by it, read by others without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ronde.trace.heartbeat import Vitals, look_at, vitals_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return vitals_path(tmp_path, 1)


def test_what_is_written_is_seen(path: Path) -> None:
    vitals = Vitals.create(path, thread=77, threads=4)
    assert vitals is not None
    vitals.beat(answers=True)
    vitals.step(3)
    seen = look_at(path)
    assert seen is not None
    assert (seen.pid, seen.thread, seen.step, seen.threads) == (os.getpid(), 77, 3, 4)
    assert seen.beat > 0
    assert seen.answers
    vitals.beat(answers=False)
    assert not look_at(path).answers  # pyright: ignore[reportOptionalMemberAccess]


def test_the_step_since_which_gradients_are_not_finite(path: Path) -> None:
    vitals = Vitals.create(path, thread=1, threads=1)
    assert vitals is not None

    def since() -> int:
        seen = look_at(path)
        assert seen is not None
        return seen.not_finite

    vitals.finite(True)
    assert since() == 0
    vitals.step(4)
    vitals.finite(False)
    vitals.step(5)
    vitals.finite(False)
    assert since() == 5  # the fifth step, of which four were done
    vitals.finite(True)  # a loss scale was too large once
    assert since() == 0


def test_nothing_is_seen_of_a_rank_that_has_not_begun(path: Path) -> None:
    assert look_at(path) is None
    path.write_bytes(b"short")
    assert look_at(path) is None


def test_a_rank_does_without_where_no_file_can_be_made(tmp_path: Path) -> None:
    assert Vitals.create(tmp_path / "missing" / "x", thread=1, threads=1) is None

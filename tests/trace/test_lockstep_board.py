"""The board by which ranks of a host see that they are not in step: several boards in one process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ronde.trace.lockstep_board import SLOTS, BoardState, LockstepBoard


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[LockstepBoard]]:
    made = [LockstepBoard(tmp_path / "boundary.board", rank, 3) for rank in range(3)]
    yield made
    for board in made:
        board.close()


def places(entries: Any) -> list[tuple[int, str, str]]:
    return [(entry.rank, entry.what, entry.where) for entry in entries]


def test_ranks_in_step_do_not_differ(boards: list[LockstepBoard]) -> None:
    for step in range(3 * SLOTS):
        for board in boards:
            number = board.record(f"all_reduce of float32 [{step}]", "train.py:12")
            assert number == step + 1
            assert board.differing(number) == ()
    assert boards[0].first_difference() == ()


def test_whoever_comes_second_sees_the_difference(boards: list[LockstepBoard]) -> None:
    for board in boards:
        board.record("all_reduce of float32 [1]", "train.py:3")
    number = boards[2].record("all_reduce of float32 [1]", "train.py:12")
    assert boards[2].differing(number) == ()
    assert boards[0].record("broadcast of int64 [8]", "train.py:14") == number
    assert places(boards[0].differing(number)) == [
        (0, "broadcast of int64 [8]", "train.py:14"),
        (2, "all_reduce of float32 [1]", "train.py:12"),
    ]


def test_a_rank_that_comes_late_is_waited_for(
    boards: list[LockstepBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            boards[1].record("odd", "train.py:2")

    monkeypatch.setattr("ronde.trace.lockstep_board.time.sleep", sleep)
    boards[0].record("odd", "train.py:1")
    number = boards[2].record("even", "train.py:3")
    assert [entry.rank for entry in boards[2].differing(number)] == [0, 1, 2]
    assert len(slept) == 3


def test_the_same_operation_on_another_line_is_a_difference(boards: list[LockstepBoard]) -> None:
    boards[0].record("all_reduce of float32 [1]", "train.py:12")
    number = boards[1].record("all_reduce of float32 [1]", "train.py:14")
    assert boards[1].differs(number)


def test_the_first_difference_explains_later_ones(boards: list[LockstepBoard]) -> None:
    boards[0].record("same", "train.py:1")
    boards[0].record("one", "train.py:2")
    boards[0].record("three", "train.py:4")
    boards[1].record("same", "train.py:1")
    boards[1].record("two", "train.py:3")
    assert places(boards[0].first_difference()) == [(0, "one", "train.py:2"), (1, "two", "train.py:3")]


def test_a_rank_far_ahead_is_not_compared_with_what_it_did_before(boards: list[LockstepBoard]) -> None:
    for step in range(SLOTS + 2):
        boards[0].record(f"step {step}", "train.py:1")
    number = boards[1].record("step 0", "train.py:1")
    assert boards[1].differing(number) == ()


def test_long_texts_keep_the_operation_and_the_line(boards: list[LockstepBoard]) -> None:
    what = f"all_gather of float32 {list(range(200))}"
    where = f"/{'folder/' * 60}train.py:1234"
    boards[0].record(what, where)
    boards[1].record("other", where)
    (first, second) = boards[1].differing(1)
    assert what.startswith(first.what)
    assert first.what.startswith("all_gather of float32 [0, 1, 2")
    assert where.endswith(first.where)
    assert first.where.endswith("/train.py:1234")
    assert first.where == second.where


def test_standings(boards: list[LockstepBoard], tmp_path: Path) -> None:
    other = LockstepBoard(tmp_path / "other.board", 1, 2)
    assert [standing.state for standing in other.standings()] == [BoardState.ABSENT, BoardState.RUNNING]
    other.close()
    for board in boards:
        board.record("first", "train.py:1")
        board.record("second", "train.py:2")
    boards[0].waits(1)
    boards[1].waits(2)
    boards[1].goes_on()
    boards[2].ends()
    looking = LockstepBoard(tmp_path / "boundary.board", None, 3)
    found = looking.standings()
    looking.close()
    assert [(each.rank, each.state) for each in found] == [
        (0, BoardState.WAITING),
        (1, BoardState.RUNNING),
        (2, BoardState.ENDED),
    ]
    assert [each.entry.where for each in found if each.entry is not None] == [
        "train.py:1",
        "train.py:2",
        "train.py:2",
    ]
    assert found[0].since <= found[1].since <= found[2].since


def test_looking_makes_no_board(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LockstepBoard(tmp_path / "boundary.board", None, 2)
    (tmp_path / "boundary.board").write_bytes(b"short")
    with pytest.raises(OSError, match="is not complete"):
        LockstepBoard(tmp_path / "boundary.board", None, 2)


def test_a_full_disk_is_an_error_and_no_bus_error_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left on device"):
        LockstepBoard(tmp_path / "boundary.board", 0, 2)

"""Whoever comes last to a number on the board knows that, and since when the last but one is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.trace import lockstep_board
from ronde.trace.lockstep_board import SLOTS, LockstepBoard


def test_the_last_to_come_knows_for_how_long_the_last_but_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(lockstep_board, "monotonic", lambda: clock[0])
    boards = [LockstepBoard(tmp_path / "boundary.board", rank, 3) for rank in range(3)]
    for turn in range(1, 2 * SLOTS):
        arrivals = [100.0 * turn, 100.0 * turn + 5, 100.0 * turn + 9]
        found: list[float | None] = []
        for board, clock[0] in zip(boards, arrivals, strict=True):
            found.append(board.lateness(board.record("all_reduce", "train.py:1")))
        assert found == [None, None, 4.0]
    # The time of a peer that is written a moment behind its number is that of the last round still.
    number = boards[0].record("all_reduce", "train.py:1")
    place = boards[1]._ring + number % SLOTS * lockstep_board._ENTRY_SIZE
    boards[2].record("all_reduce", "train.py:1")
    lockstep_board._NUMBER.pack_into(boards[1]._memory, place, number)
    assert boards[0].lateness(number) == 0.0
    for board in boards:
        board.close()


def test_one_rank_is_never_late(tmp_path: Path) -> None:
    board = LockstepBoard(tmp_path / "boundary.board", 0, 1)
    assert board.lateness(board.record("all_reduce", "train.py:1")) is None
    board.close()

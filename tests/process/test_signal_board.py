"""The board on which ranks of a host count signals: several boards in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ronde.process.signal_board import SLOTS, SignalBoard


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[SignalBoard]]:
    made = [SignalBoard(tmp_path / "signals.board", rank, 3, 2) for rank in range(3)]
    yield made
    for board in made:
        board.close()


def test_all_ranks_read_the_most_that_any_had_at_a_step(boards: list[SignalBoard]) -> None:
    for step in range(3 * SLOTS):
        for rank, board in enumerate(boards):
            board.write(step, [step if rank == 1 else 0, rank])
        assert [board.most(step) for board in boards] == [(step, 2)] * 3


def test_what_ranks_ahead_have_received_since_is_not_in_a_steps_counts(boards: list[SignalBoard]) -> None:
    for board in boards:
        board.write(4, [0, 0])
    boards[0].write(5, [1, 0])
    boards[0].write(6, [1, 7])
    assert [board.most(4) for board in boards] == [(0, 0)] * 3


def test_a_step_is_not_known_until_all_have_come_there(boards: list[SignalBoard]) -> None:
    for board in boards:
        board.write(1, [0, 0])
    boards[0].write(2, [1, 0])
    boards[1].write(2, [0, 0])
    assert boards[0].most(2) is None
    boards[2].write(2, [0, 3])
    assert boards[0].most(2) == (1, 3)


def test_nobody_waits_for_a_rank_that_handles_no_signals_or_has_ended(tmp_path: Path) -> None:
    first, second = (SignalBoard(tmp_path / "signals.board", rank, 3, 2) for rank in range(2))
    first.write(1, [1, 0])
    second.write(1, [0, 0])
    first.write(2, [1, 0])
    assert first.most(2) is None
    second.close()
    assert first.most(2) == (1, 0)
    first.close()


def test_a_rank_that_counts_later_is_not_waited_for_at_earlier_steps(boards: list[SignalBoard]) -> None:
    boards[0].write(3, [1, 0])
    boards[1].write(4, [5, 5])
    assert boards[0].most(3) == (1, 0)


def test_slower_ranks_read_what_one_had_received_that_has_ended(tmp_path: Path) -> None:
    first, second = (SignalBoard(tmp_path / "signals.board", rank, 2, 2) for rank in range(2))
    for step in range(1, 5):
        first.write(step, [step, 0])
        second.write(step, [0, 0])
    first.close()
    assert second.most(3) == (3, 0)
    assert second.most(4) == (4, 0)
    second.write(5, [0, 0])
    assert second.most(5) == (0, 0)

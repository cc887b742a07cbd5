"""What ranks tell of signals along with collectives: several boards in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ronde.trace.signal_board import SignalBoard
from ronde.trace.signal_notices import SLOTS, SignalNotices


@pytest.fixture
def notices(tmp_path: Path) -> Iterator[list[SignalNotices]]:
    boards = [SignalBoard(tmp_path / "signals.board", rank, 3, 2) for rank in range(3)]
    yield [board.notices for board in boards]
    for board in boards:
        board.close()


def test_nothing_new_is_none(notices: list[SignalNotices]) -> None:
    assert notices[0].most(5) is None
    assert notices[1].write(6, [0, 1])
    assert notices[0].most(6) == (0, 1)
    assert notices[0].most(7) is None


def test_all_ranks_read_the_most_that_any_had_at_a_collective(notices: list[SignalNotices]) -> None:
    for number in range(1, 3 * SLOTS):
        assert notices[0].write(number, [number, 0])
        assert notices[2].write(number, [0, 2 * number])
        assert [each.most(number) for each in notices] == [(number, 2 * number)] * 3


def test_what_goes_along_with_a_later_collective_is_not_read(notices: list[SignalNotices]) -> None:
    notices[0].write(3, [1, 0])
    notices[0].write(5, [2, 7])
    notices[1].write(4, [0, 3])
    assert notices[2].most(4) == (1, 3)
    assert notices[2].most(4) == (1, 3)  # asked again at the next, as there is more to come
    assert notices[2].most(5) == (2, 7)
    assert notices[2].most(6) is None


def test_a_rank_that_starts_many_collectives_tells_some_of_it_later(notices: list[SignalNotices]) -> None:
    """Slower ranks still find what they may read."""
    notices[0].write(1, [1, 0])
    assert notices[0].most(1) == (1, 0)
    taken = [notices[0].write(number, [number, 0]) for number in range(2, 2 + SLOTS)]
    assert taken == [True] * 4 + [False] * (SLOTS - 4)
    assert notices[1].most(1) == (1, 0)
    assert notices[0].most(9) == (5, 0)
    assert notices[0].write(10, [10, 0])
    assert notices[1].most(10) == (10, 0)

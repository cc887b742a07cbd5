"""What the main rank reads, as others take it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ronde.boundary.patches import Patches
from ronde.comm import readings
from ronde.comm.readings import Readings
from ronde.errors import PeerLost
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
HERE, THERE = 1, 2
FORK = multiprocessing.get_context("fork")


@contextmanager
def shared(rank: Rank, *, slots: int = 4096, patience: float = 60.0) -> Iterator[Readings]:
    patches = Patches()
    patches.set(readings, "SLOTS", slots)
    patches.set(readings, "_PATIENCE_S", patience)
    made = Readings(rank.rank, rank.groups["boundary"].all_gather_object, timeout=30)
    try:
        yield made
    finally:
        made.end()
        rank.groups["boundary"].barrier()
        patches.restore()


def _told(made: Readings, *places: int, first: int = 0) -> None:
    for number, place in enumerate(places, first):
        made.tell(place, (0, number))


def _taken(made: Readings, *places: int) -> list[int | None]:
    values = [made.take(place) for place in places]
    return [value and value[1] for value in values]


def _as_often(rank: Rank) -> list[int | None]:
    places = [HERE, THERE, *[HERE] * 50]
    with shared(rank) as made:
        if rank.rank:
            return _taken(made, *places)
        _told(made, *places)
        return [*range(len(places))]


def test_ranks_that_read_as_often_read_the_same(ranks: Ranks) -> None:
    assert ranks(3, _as_often) == [[*range(52)]] * 3


def _unequally_often(rank: Rank) -> list[int | None]:
    """Rank 1 reads less often before the first collective, and more often before the second."""
    with shared(rank) as made:
        if rank.rank == 0:
            _told(made, THERE, HERE, HERE, HERE, THERE)
            made.begin()
            _told(made, HERE, THERE, first=5)
            made.begin()
            _told(made, HERE, first=7)
            return []
        found = _taken(made, THERE, HERE, THERE)
        made.begin()
        found += _taken(made, HERE, HERE, HERE, THERE)
        made.begin()
        return found + _taken(made, HERE)


def test_who_reads_more_often_has_its_own(ranks: Ranks) -> None:
    assert ranks(2, _unequally_often)[1] == [0, 1, 4, 5, None, None, 6, 7]


def _past_the_end(rank: Rank) -> list[int | None]:
    with shared(rank) as made:
        if rank.rank == 0:
            _told(made, HERE)
            return []
        return _taken(made, HERE, HERE)


def test_nobody_waits_for_a_main_rank_that_has_ended(ranks: Ranks) -> None:
    assert ranks(2, _past_the_end)[1] == [0, None]


def _many(rank: Rank) -> list[int | None]:
    with shared(rank, slots=4) as made:
        if rank.rank:
            return _taken(made, *[HERE] * 50)
        _told(made, *[HERE] * 50)
        return [*range(50)]


def test_a_full_ring_waits_for_who_reads(ranks: Ranks) -> None:
    assert ranks(3, _many) == [[*range(50)]] * 3


def _round_and_round(rank: Rank) -> list[int | None]:
    """The main rank does not come to a place where the other one stands, and reads more than a ring."""
    with shared(rank, slots=4) as made:
        if rank.rank == 0:
            _told(made, *[HERE] * 20)
            made.begin()
            _told(made, THERE, first=20)
            return []
        found = _taken(made, THERE, THERE)
        made.begin()
        return found + _taken(made, THERE)


def test_a_full_ring_keeps_nobody_from_going_on(ranks: Ranks) -> None:
    assert ranks(2, _round_and_round)[1] == [None, None, 20]


def _out_of_patience(rank: Rank) -> list[int | None]:
    """Rank 1 waits for what the main rank does after it has read more than a ring."""
    with shared(rank, slots=4, patience=0.01) as made:
        if rank.rank == 0:
            _told(made, *[HERE] * 7)
            rank.groups["boundary"].barrier()
            return []
        rank.groups["boundary"].barrier()
        return _taken(made, THERE, HERE)


def test_the_main_rank_does_not_wait_for_ever(ranks: Ranks) -> None:
    assert ranks(2, _out_of_patience)[1] == [None, 3]


def _dies(pipe: Any) -> None:
    made = Readings(0, lambda mine: _exchanged(pipe, mine, first=True), timeout=30)
    made.tell(HERE, (0, 7))
    os.kill(os.getpid(), signal.SIGKILL)


def _exchanged(pipe: Any, mine: Any, *, first: bool) -> list[Any]:
    pipe.send(mine)
    theirs = pipe.recv()
    return [mine, theirs] if first else [theirs, mine]


def test_a_main_rank_that_dies_is_named() -> None:
    here, there = FORK.Pipe()
    main = FORK.Process(target=_dies, args=(there,))
    main.start()
    made = Readings(1, lambda mine: _exchanged(here, mine, first=False), timeout=30)
    with contextlib.ExitStack() as stack:
        stack.callback(made.end)
        assert made.take(HERE) == (0, 7)
        with pytest.raises(PeerLost, match=rf"^rank 0 \(process {main.pid}\) has died$"):
            made.take(HERE)
    main.join()

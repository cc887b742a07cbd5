"""What worker processes give, in another order on each rank, is what they gave to rank 0."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ronde.batches import from_processes
from ronde.batches.from_processes import FromProcesses
from ronde.comm.agreement import Agreement
from ronde.patching.patches import Patches
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
FORK = multiprocessing.get_context("fork")


@contextmanager
def as_rank_0(rank: Rank) -> Iterator[None]:
    patches, comm = Patches(), rank.groups["boundary"]

    def in_step() -> bool:
        return threading.current_thread() is threading.main_thread()

    patches.set(from_processes, "_PATIENCE_S", 0.5)
    FromProcesses(comm, Agreement(comm), in_step).install(patches)
    try:
        yield
    finally:
        patches.restore()


def _mixed(rank: Rank) -> list[str]:
    """In another order on each rank."""
    names = list("abc")
    return names[rank.rank :] + names[: rank.rank]


def _give(target: Any, values: list[Any]) -> None:
    for value in values:
        target.send(value) if hasattr(target, "send") else target.put(value)


def _from_processes(rank: Rank, make: str) -> list[Any]:
    with as_rank_0(rank):
        here: Any = getattr(FORK, make)()
        here, there = here if make == "Pipe" else (here, here)
        process = FORK.Process(target=_give, args=(there, [[name, rank.rank] for name in _mixed(rank)]))
        process.start()
        found = [here.recv() if make == "Pipe" else here.get() for _ in range(3)]
        process.join()
        return found


@pytest.mark.parametrize("make", ["Queue", "SimpleQueue", "JoinableQueue", "Pipe"])
def test_each_rank_gets_what_rank_0_got(ranks: Ranks, make: str) -> None:
    expected = [[name, 0] for name in "abc"]
    assert ranks(2, _from_processes, make) == [expected, expected]


def _tensors(rank: Rank) -> list[float]:
    with as_rank_0(rank):
        given: Any = torch.multiprocessing.get_context("fork").Queue()
        given.put(torch.full((3,), 1.0 + rank.rank))
        return given.get().tolist()


def test_tensors_are_sent_too(ranks: Ranks) -> None:
    assert ranks(2, _tensors) == [[1.0] * 3] * 2


def _own(rank: Rank) -> int:
    """A queue of the rank's own process: what is a copy of nothing, and has no name."""
    with as_rank_0(rank):
        here, there = FORK.Pipe()
        there.send(_Unsendable(rank.rank))
        return here.recv().value


class _Unsendable:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return _thawed, (self.value,)


class _Thawed:
    def __init__(self, value: int) -> None:
        self.value = value
        self.lock = threading.Lock()


def _thawed(value: int) -> _Thawed:
    return _Thawed(value)


def test_what_cannot_be_sent_stays_the_ranks_own(ranks: Ranks) -> None:
    assert ranks(2, _own) == [0, 1]


def _until_empty(rank: Rank) -> list[Any]:
    """Rank 1 has got one less."""
    found: list[Any] = []
    with as_rank_0(rank):
        results: Any = FORK.SimpleQueue()
        for number in range(3 - rank.rank):
            results.put(number)
        while not results.empty():
            if rank.rank and len(found) == 2:
                results.put("late")
            found.append(results.get())
        return found


def test_whether_there_is_something_is_asked_of_rank_0(ranks: Ranks) -> None:
    assert ranks(2, _until_empty) == [[0, 1, 2]] * 2


def _in_time(rank: Rank, has: int) -> list[Any]:
    """Only rank `has` has got something."""
    with as_rank_0(rank):
        results: Any = FORK.Queue()
        if rank.rank == has:
            results.put("here")
        found: list[Any] = []
        for _ in range(2):
            try:
                found.append(results.get(timeout=0.3))
            except queue.Empty:
                found.append("none")
        return found


@pytest.mark.parametrize(("has", "expected"), [(0, ["here", "none"]), (1, ["none", "none"])])
def test_nobody_waits_for_ever_where_rank_0_does_not_wait(ranks: Ranks, has: int, expected: Any) -> None:
    assert ranks(2, _in_time, has) == [expected, expected]


def _closed(rank: Rank) -> str:
    with as_rank_0(rank):
        here, there = FORK.Pipe()
        there.close()
        try:
            here.recv()
        except EOFError:
            return "ended"
        return "given"


def test_an_error_is_every_ranks(ranks: Ranks) -> None:
    assert ranks(2, _closed) == ["ended", "ended"]


def _in_a_thread(rank: Rank) -> list[int]:
    with as_rank_0(rank):
        results: Any = FORK.SimpleQueue()
        results.put(rank.rank)
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(results.get()))
        thread.start()
        thread.join()
        return found


def test_threads_are_given_their_ranks_own(ranks: Ranks) -> None:
    assert ranks(2, _in_a_thread) == [[0], [1]]

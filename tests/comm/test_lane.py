"""A thread that does one thing after another."""

from __future__ import annotations

import threading

import pytest
import torch

from ronde.comm.lane import Lane


def test_things_are_done_in_order_while_the_caller_goes_on():
    lane = Lane("test")
    goes, done = threading.Event(), []
    tasks = [lane.start(goes.wait), *(lane.start(lambda n=n: done.append(n)) for n in range(5))]
    assert done == []
    goes.set()
    for task in tasks:
        task.wait()
    assert done == [0, 1, 2, 3, 4]
    lane.close()
    lane.close()


def test_after_a_failure_nothing_more_is_done():
    lane, done = Lane("test"), []

    def fail() -> None:
        raise RuntimeError("gone")

    first, second = lane.start(fail), lane.start(lambda: done.append(1))
    for task in (first, second):
        with pytest.raises(RuntimeError, match="gone"):
            task.wait()
    assert done == []
    lane.close()


def test_its_thread_has_one_core_and_the_callers_keep_theirs():
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        lane = Lane("test")
        lane.start(lambda: seen.append(torch.get_num_threads())).wait()
        lane.close()
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

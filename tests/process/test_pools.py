"""Results of pools come in the order of their calls."""

from __future__ import annotations

import concurrent.futures
import multiprocessing.dummy
import threading
from collections.abc import Iterator

import pytest

from ronde.patching.patches import Patches
from ronde.process import pools


@pytest.fixture(autouse=True)
def _in_order() -> Iterator[None]:
    patches = Patches()
    pools.install(patches)
    yield
    patches.restore()


def test_futures_that_are_done_in_another_order() -> None:
    gates = {name: threading.Event() for name in "abcd"}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = {pool.submit(gate.wait, 30): name for name, gate in gates.items()}
        for name in "dbca":
            gates[name].set()
        assert [futures[each] for each in concurrent.futures.as_completed(futures)] == list("abcd")
        again = list(futures)
        assert list(concurrent.futures.as_completed([*again, again[0]])) == again


def test_a_limit_of_time_is_kept() -> None:
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(stop.wait, 30)
        with pytest.raises(concurrent.futures.TimeoutError):
            list(concurrent.futures.as_completed([future], timeout=0.01))
        stop.set()


def test_results_of_a_pool() -> None:
    order, turn = list("cab"), threading.Condition()

    def call(name: str) -> str:
        with turn:
            assert turn.wait_for(lambda: order[0] == name, 30)
            order.pop(0)
            turn.notify_all()
        return name

    with multiprocessing.dummy.Pool(3) as pool:
        assert list(pool.imap_unordered(call, "abc")) == list("abc")

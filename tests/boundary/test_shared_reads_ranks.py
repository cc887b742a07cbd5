"""What the script reads of values that its processes share is what the main rank reads."""

from __future__ import annotations

import multiprocessing.managers
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ronde.boundary.circumstances.agreement import Agreement
from ronde.boundary.circumstances.shared_reads import SharedReads
from ronde.boundary.patches import Patches
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
FORK = multiprocessing.get_context("fork")


@contextmanager
def as_main_rank_reads(rank: Rank) -> Iterator[multiprocessing.managers.SyncManager]:
    patches, thread, comm = Patches(), threading.current_thread(), rank.groups["boundary"]
    SharedReads(comm, Agreement(comm), lambda: threading.current_thread() is thread).install(patches)
    try:
        with multiprocessing.managers.SyncManager(ctx=FORK) as manager:
            yield manager
    finally:
        patches.restore()


def _raised(read: Callable[[], Any]) -> str:
    try:
        return f"none: {read()}"
    except Exception as error:
        return type(error).__name__


def _managed(rank: Rank) -> list[Any]:
    """Ranks have different values, and different numbers of them."""
    own = rank.rank + 1
    with as_main_rank_reads(rank) as manager:
        names = manager.Namespace(weight=own / 4)
        table = manager.dict({str(number): number * own for number in range(own)})
        queue = manager.list([own] * own)
        value = manager.Value("d", float(own))
        found: list[Any] = [
            names.weight,
            value.value,
            value.get(),
            queue[0],
            len(queue),
            list(queue),
            queue[:],
        ]
        found += [table["0"], "1" in table, table.get("1"), list(table), dict(table), table.copy()]
        found += [sorted(table.keys()), table.values(), table.items(), _raised(lambda: table["1"])]
        found += [_raised(lambda: queue[1]), queue.pop(), _raised(queue.pop)]
        names.weight = names.weight + 1
        found.append(names.weight)
        return found


def test_what_managers_hold(ranks: Ranks) -> None:
    first, second = ranks(2, _managed)
    assert first == second
    assert first == [
        *(0.25, 1.0, 1.0, 1, 1, [1], [1]),
        *(0, False, None, ["0"], {"0": 0}, {"0": 0}),
        *(["0"], [0], [("0", 0)], "KeyError"),
        *("IndexError", 1, "IndexError"),
        1.25,
    ]


def _number(rank: Rank) -> list[Any]:
    """In shared memory, of each kind; another thread reads this rank's own."""
    own = rank.rank + 1
    with as_main_rank_reads(rank):
        real, whole, truth = FORK.Value("d", own / 4), FORK.Value("i", own), FORK.Value("b", own == 1)
        found = [real.value, whole.value, bool(truth.value)]
        with whole.get_lock():
            whole.value += 1
        beside: list[int] = []
        thread = threading.Thread(target=lambda: beside.append(int(real.value * 4)))
        thread.start()
        thread.join()
        return [*found, whole.value, beside[0] == own]


def test_numbers_in_shared_memory(ranks: Ranks) -> None:
    assert ranks(2, _number) == [[0.25, 1, True, 2, True]] * 2


def _inner(rank: Rank) -> int:
    """What leads to a manager is each rank's own: it has one."""
    with as_main_rank_reads(rank) as manager:
        table = manager.dict(inner=manager.dict(number=rank.rank + 1))
        inner = table["inner"]
        inner["mine"] = rank.rank
        return inner["number"]


def test_what_leads_to_a_manager(ranks: Ranks) -> None:
    assert ranks(2, _inner) == [1, 1]

"""The clock is rank 0's; what is not in step keeps its own."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ronde.comm.agreement import Agreement
from ronde.patching.patches import Patches
from ronde.process.clock import Circumstances
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]


def _asked(rank: Rank, ask: Callable[[Rank], Any]) -> Any:
    """What a script would learn on this rank, whose clock is an hour apart from every other's."""
    patches, clocks = Patches(), Patches()
    process, thread = os.getpid(), threading.get_ident()
    for name in ("time", "perf_counter", "monotonic"):
        plain = getattr(time, name)
        clocks.set(time, name, lambda plain=plain: plain() + 3600 * rank.rank)

    def in_step() -> bool:
        return (os.getpid(), threading.get_ident()) == (process, thread)

    circumstances = Circumstances(Agreement(rank.groups["boundary"]), in_step)
    circumstances.install(patches)
    try:
        return ask(rank)
    finally:
        circumstances.uninstall()
        patches.restore()
        clocks.restore()


def _clocks(rank: Rank) -> list[Any]:
    now = [time.time(), time.time_ns(), time.perf_counter(), time.monotonic(), time.strftime("%H:%M:%S")]
    dates = [datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc), datetime.date.today()]
    return [*now, *(date.isoformat() for date in dates), time.localtime().tm_sec, time.ctime()]


def _kinds_of_now(rank: Rank) -> list[Any]:
    given = [time.localtime(None).tm_sec, time.ctime(0), time.strftime("%Y", time.gmtime(0))]
    return [*given, time.gmtime().tm_sec, time.strftime("%H:%M:%S", time.localtime())]


def _until_time_is_up(rank: Rank) -> int:
    start, steps = time.time(), 1
    while time.time() - start < 0.01:
        steps += 1
    return steps


def _in_a_thread(rank: Rank) -> float:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(time.time()))
    thread.start()
    thread.join()
    return found[0]


def _dates_are_dates(rank: Rank) -> list[bool]:
    now = datetime.datetime.now()
    return [
        type(now) is datetime.datetime,
        datetime.datetime(2020, 1, 1) < now,
        type(datetime.datetime.today()) is datetime.datetime,
        datetime.datetime.now(datetime.timezone.utc).tzinfo is datetime.timezone.utc,
        time.localtime(0).tm_year in (1969, 1970),
    ]


def _kept(rank: Rank) -> str:
    return "" if datetime.datetime.now() > datetime.datetime(2020, 1, 1) else "the clock is wrong"


@pytest.mark.parametrize("ask", [_clocks, _kinds_of_now, _until_time_is_up, _dates_are_dates])
def test_every_rank_learns_the_same(ranks: Ranks, ask: Callable[[Rank], Any]) -> None:
    for world_size in (2, 3):
        first, *others = ranks(world_size, _asked, ask)
        assert others == [first] * (world_size - 1)
        assert first


def test_a_thread_keeps_its_own_clock(ranks: Ranks) -> None:
    first, second = ranks(2, _asked, _in_a_thread)
    assert 3000 < second - first < 4200


def test_methods_of_types_are_given_back(ranks: Ranks) -> None:
    before = vars(datetime.datetime)["now"]
    patches = Patches()
    circumstances = Circumstances(lambda name, value: 0.0, lambda: True)
    circumstances.install(patches)
    told = datetime.datetime.now(datetime.timezone.utc).year, time.time()
    kept = time.time
    circumstances.uninstall()
    patches.restore()
    assert told == (1970, 0.0)
    assert vars(datetime.datetime)["now"] is before
    assert kept() > 1e9
    assert ranks(2, _kept) == ["", ""]


def _out_of_step(rank: Rank) -> str:
    agreement = Agreement(rank.groups["boundary"])
    try:
        agreement(f"the clock at train.py:{10 + rank.rank}", 1.0)
    except BaseException as lost:
        return f"{type(lost).__name__}: {lost}"
    return "agreed"


def test_ranks_on_different_lines_are_told_so(ranks: Ranks) -> None:
    first, second = ranks(2, _out_of_step)
    assert first == "agreed"
    assert second.startswith("PeerLost: Rank 1 asks for the clock at train.py:11 while rank 0 asks for")

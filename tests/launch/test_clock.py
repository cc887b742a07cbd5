"""Clocks of other hosts, compared by questions."""

from __future__ import annotations

import pytest

from ronde.launch import clock as clocks
from ronde.launch.clock import HostClock, launched_node


class Times:
    """Clocks of two hosts: the other's wall clock is an hour ahead, its monotonic one 1000 s, and drifts."""

    drift = 1e-5

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        monkeypatch.setattr(clocks, "time", self)

    def time(self) -> float:
        return 1.7e9 + self.now

    def monotonic(self) -> float:
        return self.now

    def ask(self, clock: HostClock, there: float, back: float) -> None:
        question = clock.question()
        self.now += there
        monotonic = self.now * (1 + self.drift) + 1000
        answer = {**question, "time": self.time() + 3600, "monotonic": monotonic}
        self.now += back
        clock.take(answer)


def test_the_fastest_answer_counts_and_drift_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    times, clock = Times(monkeypatch), HostClock()
    for delay in (0.2, 0.001, 0.3, 0.1, 0.1, 0.1, 0.1):
        times.ask(clock, delay, delay * 2)
        assert not clock.is_known
    times.ask(clock, 0.5, 0.5)
    assert clock.is_known
    assert clock.first.error == pytest.approx(0.0015)
    assert clock.first.wall == pytest.approx(3600, abs=0.0015)
    for _ in range(20):
        times.now += 50
        times.ask(clock, 0.001, 0.001)
    node = launched_node("two", "id", {1: 7}, clock)
    assert node.error == pytest.approx(0.0015)
    for now in (50.0, 500.0, 1000.0):
        there = round((now * (1 + times.drift) + 1000) * 1e9)
        assert node.by_launchers_clock(there) / 1e9 == pytest.approx(now, abs=2 * node.error)
    # Without drift it would be 10 ms off by then.
    assert abs(there / 1e9 - 1000 - now) > 4 * node.error

"""What the time of a step goes into, on a clock that a test moves."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from ronde.trace import step_clock
from ronde.trace.step_clock import Activity, StepClock, StepTimes, is_looked_at, undisturbed

FIRST = next(step for step in range(100) if is_looked_at(step))


class Time:
    """Nanoseconds: all that passed, what of it was waiting, and what of it the rank stood still."""

    def __init__(self) -> None:
        self.now = self.waited = self.halted = 0

    def passes(self, seconds: int, *, waiting: bool = False, halted: bool = False) -> None:
        self.now += seconds * 10**9
        self.waited += seconds * 10**9 * waiting
        self.halted += seconds * 10**9 * halted


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(step_clock, "perf_counter_ns", lambda: time.now)
    monkeypatch.setattr(step_clock, "thread_time_ns", lambda: time.now - time.waited - time.halted)
    return time


@pytest.fixture
def clock(time: Time) -> StepClock:
    """In the first step that is looked at."""
    clock = StepClock()
    clock.start(lambda: time.waited)
    clock.stepped(FIRST)
    assert clock.armed
    return clock


def measured(clock: StepClock) -> tuple[float, ...]:
    """Whole, waited, own, model, rows, halted."""
    clock.stepped(FIRST + 1)
    assert not clock.armed
    times = clock.times()
    assert times is not None
    return dataclasses.astuple(times)


def test_each_part_has_its_own_time(clock: StepClock, time: Time) -> None:
    time.passes(1)
    clock.enter(Activity.ROWS)
    time.passes(2)
    before = clock.enter(Activity.OWN)
    time.passes(4)
    clock.enter(Activity.MODEL)
    time.passes(8)
    clock.enter(before)
    time.passes(16)
    assert measured(clock) == (31, 0, 4, 8, 18, 0)


def test_waiting_is_none_of_them(clock: StepClock, time: Time) -> None:
    clock.enter(Activity.MODEL)
    time.passes(1)
    time.passes(10, waiting=True)
    clock.enter(Activity.OWN)
    time.passes(10, waiting=True)
    time.passes(2)
    time.passes(3, halted=True)
    assert measured(clock) == (26, 20, 5, 1, 0, 3)


def test_what_has_run_is_claimed_afterwards(clock: StepClock, time: Time) -> None:
    time.passes(1)
    clock.enter(Activity.SCRIPT)
    time.passes(2)
    clock.claim(Activity.OWN)
    time.passes(4)
    assert measured(clock) == (7, 0, 6, 0, 0, 0)


def test_an_operation_on_many_elements_is_the_models(clock: StepClock, time: Time) -> None:
    begun = clock.operation()
    time.passes(5)
    clock.operated(begun, 10**6)  # which takes 0.1 s at most
    begun = clock.operation()
    time.passes(5)
    clock.operated(begun, 10**9)
    time.passes(1)
    assert measured(clock) == pytest.approx((11, 0, 4.9, 5.1, 0, 0))


def test_other_threads_say_nothing(clock: StepClock, time: Time) -> None:
    time.passes(1)
    thread = threading.Thread(target=lambda: (clock.enter(Activity.OWN), clock.claim(Activity.MODEL)))
    thread.start()
    thread.join()
    time.passes(1)
    assert measured(clock) == (2, 0, 0, 0, 0, 0)


def test_a_part_that_an_exception_left_open_ends_with_the_step(clock: StepClock, time: Time) -> None:
    clock.enter(Activity.OWN)
    clock.stepped(FIRST + 1)
    second = next(step for step in range(FIRST + 1, 100) if is_looked_at(step))
    clock.stepped(second)
    time.passes(1)
    clock.stepped(second + 1)
    times = clock.times()
    assert times is not None
    assert times.own == 0


def test_nothing_is_looked_at_before_it_starts() -> None:
    clock = StepClock()
    for steps in range(100):
        clock.stepped(steps)
        assert not clock.armed
    assert clock.times() is None


def test_several_steps_are_known_where_few_are_made() -> None:
    assert sum(map(is_looked_at, range(50))) >= 5


def test_optimizers_that_take_turns_are_all_seen() -> None:
    for several in range(2, 7):
        for late in (range(150), range(1000, 2000)):
            assert {step % several for step in late if is_looked_at(step)} == set(range(several))


def test_steps_that_were_disturbed_do_not_count() -> None:
    quiet = StepTimes(whole=2, waited=0.1, own=1, model=0.5, rows=0, halted=0)
    longer = dataclasses.replace(quiet, whole=4, model=2.5)  # another batch
    waiting = dataclasses.replace(quiet, whole=9, waited=7.1)
    halted = dataclasses.replace(quiet, whole=12, model=10.5, halted=10)
    mean = dataclasses.replace(quiet, whole=3, model=1.5)
    assert undisturbed([waiting, quiet, halted, longer] * 4) == mean
    assert undisturbed([]) is None
    assert undisturbed([waiting]) == waiting

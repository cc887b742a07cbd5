"""When a run is called slower than one process, by times as they were measured."""

from __future__ import annotations

import dataclasses

import pytest

from codes import without_code
from ronde.trace.step_clock import StepTimes
from ronde.trace.too_small import division, too_small_line

# An MLP of 17,000 parameters on batches of 64, on 2 ranks; plain python took 0.65 ms a step.
TINY = StepTimes(whole=2.1e-3, waited=0.3e-3, own=1.0e-3, model=0.45e-3, rows=0.0, halted=0.0)
# One of 650,000 parameters on batches of 512; plain python took 7.6 ms, with a single thread 14.3 ms.
LARGE = StepTimes(whole=10.3e-3, waited=0.6e-3, own=2.2e-3, model=6.8e-3, rows=0.0, halted=0.0)


def said(*ranks: StepTimes, steps: int = 1000, world_size: int | None = None) -> str:
    return without_code(too_small_line(division(ranks, world_size or len(ranks)), steps))


def test_a_tiny_model_is_told_with_both_figures() -> None:
    assert said(TINY, dataclasses.replace(TINY, waited=0.5e-3)) == (
        "an undisturbed step took 2.1 ms on 2 ranks, and would take about 0.80 ms in one process, "
        "1.2 ms at most: it is too small to be divided, as ronde's own code and collectives take 1.3 ms of "
        "it; use --ranks 1, or larger batches"
    )


def test_a_model_that_is_worth_dividing_is_not() -> None:
    assert said(LARGE, LARGE) == ""


def test_nor_is_a_run_of_few_steps_or_of_unknown_times() -> None:
    assert said(TINY, TINY, steps=50)
    assert said(TINY, TINY, steps=49) == ""
    assert said(world_size=2) == ""


def test_a_slow_rank_is_not_taken_for_a_small_model() -> None:
    """The others wait for it; it does not wait, and what it is slow in is its model."""
    fast = dataclasses.replace(LARGE, whole=40e-3, waited=30e-3)
    slow = dataclasses.replace(LARGE, whole=40e-3, waited=0.1e-3, model=36e-3)
    assert said(fast, fast)
    assert said(fast, slow) == said(slow, fast) == ""


def test_where_one_rank_of_several_is_known_its_waiting_is_left_out() -> None:
    """Under torchrun rank 0 tells of itself."""
    waiting = dataclasses.replace(LARGE, whole=40e-3, waited=30e-3)
    assert said(waiting, world_size=2) == ""
    assert said(TINY, world_size=2)


def test_a_machine_on_which_all_is_slow_changes_nothing() -> None:
    times = {name: 5 * value for name, value in dataclasses.asdict(LARGE).items()}
    assert said(StepTimes(**times), StepTimes(**times)) == ""


def test_one_process_is_clearly_faster_and_never_slower() -> None:
    ahead = StepTimes(whole=1.0, waited=0.0, own=0.5, model=0.5, rows=0.0, halted=0.0)
    assert said(ahead, ahead)  # at worst it is as fast
    assert said(*[dataclasses.replace(ahead, own=0.49, model=0.51)] * 2) == ""
    little = StepTimes(whole=1.0, waited=0.0, own=0.19, model=0.0, rows=0.0, halted=0.0)
    assert said(little, little) == ""


def test_samples_are_read_one_after_the_other_in_one_process() -> None:
    reading = dataclasses.replace(TINY, whole=3e-3, rows=0.9e-3)
    found = division([reading] * 4, 4)
    assert found is not None
    assert found.about == pytest.approx(1.7e-3 + 3 * 0.9e-3)
    assert found.most == pytest.approx(found.about + 3 * 0.45e-3)

"""Schedules against diagrams drawn by hand, and the closed form against the simulator."""

from __future__ import annotations

import pytest

from ronde.plan.compute import Schedule
from ronde.planner.schedule import order
from ronde.planner.simulator import simulate


def drawn(schedule: Schedule, stages: int, micros: int, chunks: int = 1) -> list[str]:
    """A line for each stage; the chunk behind the number where there are several."""
    return [
        " ".join(
            f"{each.kind}{each.micro}{'ab'[each.chunk] if chunks > 1 else ''}"
            for each in order(schedule, stage, stages, micros, chunks)
        )
        for stage in range(stages)
    ]


def test_1f1b_as_drawn() -> None:
    assert drawn("1f1b", 3, 4) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_gpipe_as_drawn() -> None:
    assert drawn("gpipe", 2, 3) == ["F0 F1 F2 B0 B1 B2"] * 2


def test_interleaved_as_drawn() -> None:
    assert drawn("interleaved", 2, 4, 2) == [
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a",
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a",
    ]


def test_zero_bubble_as_drawn() -> None:
    assert drawn("zero-bubble", 2, 3) == [
        "F0 F1 B0 W0 F2 B1 W1 B2 W2",
        "F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
@pytest.mark.parametrize(("stages", "micros"), [(2, 4), (4, 8), (8, 16), (3, 9), (5, 3)])
def test_every_micro_batch_once(schedule: Schedule, stages: int, micros: int) -> None:
    if schedule == "interleaved" and micros % stages:
        pytest.skip("interleaved needs a multiple")
    chunks = 2 if schedule == "interleaved" else 1
    for stage in range(stages):
        done = order(schedule, stage, stages, micros, chunks)
        kinds = "FBW" if schedule == "zero-bubble" else "FB"
        assert len(done) == len(set(done)) == len(kinds) * micros * chunks


@pytest.mark.parametrize(("stages", "micros"), [(2, 4), (4, 8), (8, 16), (4, 4), (3, 9)])
def test_the_closed_form_equals_the_simulator(stages: int, micros: int) -> None:
    """T = m (f + b) + (p - 1)(f + b)/v; a third of the bubble for zero-bubble with F = B = W."""
    forward, backward = [1.0] * stages, [2.0] * stages
    body, bubble = 3.0 * micros, 3.0 * (stages - 1)
    expected = {"gpipe": bubble, "1f1b": bubble, "interleaved": bubble / 2, "zero-bubble": bubble / 3}
    for schedule, extra in expected.items():
        chunks = 2 if schedule == "interleaved" else 1
        ran = simulate(schedule, forward, backward, micros, chunks=chunks)  # type: ignore[arg-type]
        assert ran.seconds == pytest.approx(body + extra), schedule


def test_sends_and_contention_only_add() -> None:
    plain = simulate("1f1b", [1.0] * 4, [2.0] * 4, 8)
    sent = simulate("1f1b", [1.0] * 4, [2.0] * 4, 8, send=0.25)
    crowded = simulate("1f1b", [1.0] * 4, [2.0] * 4, 8, send=0.25, busy=2.0)
    assert plain.seconds < sent.seconds <= crowded.seconds


def test_a_slow_stage_decides() -> None:
    ran = simulate("1f1b", [1.0, 2.0, 1.0], [1.0, 2.0, 1.0], 16)
    assert 4.0 * 16 <= ran.seconds <= 4.0 * 16 + 6.0

"""The closed form of schedules against the simulator."""

from __future__ import annotations

import pytest

from ronde.planner.simulator import simulate


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

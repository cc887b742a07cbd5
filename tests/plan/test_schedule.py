"""Schedules against diagrams drawn by hand, and what a rank holds of micro-batches."""

from __future__ import annotations

import pytest

from ronde.plan.compute import Schedule
from ronde.plan.schedule import Turn, chunks_of, most_under_way, turns

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def drawn(schedule: Schedule, stages: int, count: int) -> list[str]:
    """A line for each stage; the chunk behind the number where there are several."""
    chunks = chunks_of(schedule)
    return [
        " ".join(
            f"{kind}{piece}{'ab'[chunk] if chunks > 1 else ''}"
            for kind, piece, chunk in turns(schedule, stage, stages, count, chunks)
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
    assert drawn("gpipe", 2, 3) == ["F0 F1 F2 B2 B1 B0"] * 2


def test_interleaved_as_drawn() -> None:
    assert drawn("interleaved", 2, 4) == [
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a",
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a",
    ]


def test_zero_bubble_as_drawn() -> None:
    assert drawn("zero-bubble", 2, 3) == [
        "F0 F1 B0 W0 F2 B1 W1 B2 W2",
        "F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]


@pytest.mark.parametrize("count", [1, 3, 5, 8, 9, 13])
@pytest.mark.parametrize("stages", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_turn_comes_once_and_no_stage_waits_for_itself(
    schedule: Schedule, stages: int, count: int
) -> None:
    chunks, kinds = chunks_of(schedule), "FBW" if schedule == "zero-bubble" else "FB"
    left = [turns(schedule, stage, stages, count, chunks) for stage in range(stages)]
    for each in left:
        assert len(each) == len(set(each)) == len(kinds) * count * chunks
    done: set[tuple[str, int, int]] = {("F", piece, -1) for piece in range(count)}
    moved = True
    while moved:
        moved = False
        for stage, ahead in enumerate(left):
            while ahead and _is_ready(ahead[0], ahead[0].chunk * stages + stage, stages * chunks, done):
                kind, piece, chunk = ahead.pop(0)
                done.add((kind, piece, chunk * stages + stage))
                moved = True
    assert left == [[]] * stages


def _is_ready(turn: Turn, place: int, places: int, done: set[tuple[str, int, int]]) -> bool:
    kind, piece, _ = turn
    if kind == "F":
        return ("F", piece, place - 1) in done
    before = ("F", piece, place) if kind == "B" else ("B", piece, place)
    return before in done and (kind == "W" or place + 1 == places or ("B", piece, place + 1) in done)


@pytest.mark.parametrize(("stages", "count"), [(2, 1), (2, 8), (4, 2), (4, 9)])
def test_a_stage_holds_what_the_formula_says(stages: int, count: int) -> None:
    for stage in range(stages):
        held = {
            each: most_under_way(turns(each, stage, stages, count, chunks_of(each))) for each in SCHEDULES
        }
        assert held["gpipe"] == count
        assert held["1f1b"] == min(stages - stage, count)
        assert held["zero-bubble"] == min(stages, count)
        if count % stages == 0:
            ahead = 2 * (stages - 1 - stage) + stages + 1
            assert held["interleaved"] == min(ahead, 2 * count)

"""The file of a rank's steps: whole at every moment, of one size for any number of steps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ronde.trace.step_file import (
    COURSE,
    RECENT,
    StepFile,
    StepRecord,
    StepsOfRank,
    merged,
    read_steps,
    steps_path,
)

MS = 1_000_000


def values(step: int, *, loss: float = math.nan, steps: int = 1, length: int = MS) -> list[float]:
    """A step of one millisecond."""
    return StepRecord(
        step=step, steps=steps, begun=(step - 1) * MS + 1, ended=(step - 1) * MS + 1 + length,
        data=100, forward=200, backward=300, optimizer=50, waited=25, samples=4,
        resident=1000 + step, device=0, sent=(8, 0, 0, 1), collectives=2, last=1, late=7,
        loss=loss, losses=int(loss == loss),
    ).values()  # fmt: skip


def opened(folder: Path) -> StepFile:
    return StepFile(steps_path(folder, 0), rank=0, world_size=2, process=17, clocks=(5_000, 1), host="here")


def read(folder: Path) -> StepsOfRank:
    found = read_steps(steps_path(folder, 0))
    assert found is not None
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.show(3)
    file.write(values(1, loss=2.5))
    file.show_since(77, 1, 4)
    found = read(tmp_path)
    assert (found.rank, found.world_size, found.host, found.process, found.wall) == (0, 2, "here", 17, 5_000)
    assert (found.phase, found.since, found.steps, found.samples, found.ended) == (3, 77, 1, 4, False)
    assert found.course == found.recent == (StepRecord.of(values(1, loss=2.5)),)
    assert found.course[0].sent == (8, 0, 0, 1)
    assert found.course[0].other == MS - 675
    file.close()
    assert read(tmp_path).ended


@pytest.mark.parametrize("steps", [1, RECENT + 3, COURSE - 1, COURSE, COURSE + 1, 3 * COURSE + 700])
def test_any_number_of_steps_is_kept_as_a_whole_in_a_file_of_one_size(tmp_path: Path, steps: int) -> None:
    file = opened(tmp_path)
    size = steps_path(tmp_path, 0).stat().st_size
    for step in range(1, steps + 1):
        file.write(values(step, loss=float(step)))
    file.show_since(0, steps, 4 * steps)
    found = read(tmp_path)
    assert steps_path(tmp_path, 0).stat().st_size == size
    assert sum(each.steps for each in found.course) == steps
    assert sum(each.samples for each in found.course) == 4 * steps
    assert sum(each.sent[0] for each in found.course) == 8 * steps
    assert sum(each.loss * each.losses for each in found.course) == pytest.approx(steps * (steps + 1) / 2)
    assert [each.ended for each in found.course[:-1]] == [each.begun for each in found.course[1:]]
    assert found.course[-1].step == steps
    assert len(found.course) <= COURSE + 1
    last = range(max(1, steps - RECENT + 1), steps + 1)
    assert [each.step for each in found.recent] == list(last)
    file.close()


def test_a_fold_that_was_interrupted_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a rank is killed in the midst of it."""
    file = opened(tmp_path)
    calls = 0

    def merge(first: list[float], second: list[float]) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 700:
            raise KeyboardInterrupt
        return merged(first, second)

    monkeypatch.setattr("ronde.trace.step_file.merged", merge)
    for step in range(1, COURSE):
        file.write(values(step))
    with pytest.raises(KeyboardInterrupt):
        file.write(values(COURSE))
    file.show_since(0, COURSE, 0)
    found = read(tmp_path)
    assert sum(each.steps for each in found.course) == COURSE


def test_a_loss_that_is_read_later_belongs_to_the_last_step(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for step in range(1, COURSE + 2):  # the first in a record of two steps is in it
        file.write(values(step))
        file.read_loss(float(step))
    file.read_loss(1.0)
    file.show_since(0, COURSE + 1, 0)
    found = read(tmp_path)
    assert [each.loss for each in found.course[:2]] == [1.5, 3.5]
    assert found.recent[-1].loss == pytest.approx((COURSE + 2) / 2)
    assert found.recent[-1].losses == 2
    assert found.course[-1].loss == found.recent[-1].loss


def test_what_comes_behind_the_last_step_is_part_of_the_course_only(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write(values(1))
    tail = values(2, steps=0)
    tail[0] = 1
    file.write(tail)
    file.show_since(0, 1, 4)
    found = read(tmp_path)
    assert [(each.step, each.steps) for each in found.course] == [(1, 1), (1, 0)]
    assert len(found.recent) == 1


def test_a_loss_that_is_no_number_is_kept_as_one(tmp_path: Path) -> None:
    first, second = values(1), values(2, loss=3.0)
    first[-2:] = [math.nan, 1]
    both = StepRecord.of(merged(first, second))
    assert math.isnan(both.loss)
    assert both.losses == 2
    assert StepRecord.of(merged(values(1), second)).loss == 3.0


def test_no_file_or_another_is_none(tmp_path: Path) -> None:
    path = steps_path(tmp_path, 0)
    assert read_steps(path) is None
    path.write_bytes(b"short")
    assert read_steps(path) is None
    path.write_bytes(bytes(1 << 20))
    assert read_steps(path) is None

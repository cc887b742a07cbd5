"""Totals of a step file are those of its records, whenever it is read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ronde.report.metrics.step_totals import StepTotals
from ronde.trace.step_file import COURSE, StepFile, StepRecord, read_steps, steps_path

MS = 1_000_000


def record(step: int, loss: float = math.nan) -> StepRecord:
    return StepRecord(
        step=step, steps=1, begun=step * MS, ended=(step + 1) * MS, data=100, forward=200, backward=300,
        optimizer=50, waited=25, samples=4, resident=1000 + step, device=7, sent=(8, 0, 0, 1),
        collectives=2, last=1, late=5_000_000, loss=loss, losses=int(loss == loss),
    )  # fmt: skip


def opened(folder: Path, process: int = 17) -> StepFile:
    clocks = (5_000_000_000, MS)
    return StepFile(steps_path(folder, 0), rank=0, world_size=2, process=process, clocks=clocks, host="here")


def test_totals_are_those_of_one_reading(tmp_path: Path) -> None:
    file, totals = opened(tmp_path), StepTotals(steps_path(tmp_path, 0))
    last = 2 * COURSE + 700
    # Between readings nothing, little, or more than a whole course is written, and records are merged.
    looks = {1, 2, 3, 10, 11, 700, COURSE - 2, COURSE - 1, COURSE, COURSE + 1, 2 * COURSE, last}
    for step in range(1, last + 1):
        file.write(record(step, loss=float(step)).values())
        file.show_since((step + 1) * MS, step, 4 * step)
        if step not in looks:
            continue
        found, whole = totals.read(), read_steps(steps_path(tmp_path, 0))
        assert found is not None
        assert whole is not None
        assert (found.steps, found.collectives, found.last, found.loss) == (step, 2 * step, step, step)
        assert found.sent == {"shared memory": 8 * step, "server": step}
        assert (found.resident, found.device, found.head.samples) == (1000 + step, 7, 4 * step)
        assert found.late == pytest.approx(step * 0.005)
        for phase in ("data", "forward", "backward", "optimizer"):
            total = sum(getattr(each, phase) for each in whole.course)
            assert found.seconds[phase] == pytest.approx(total / 1e9)
        assert found.seconds["communication"] == pytest.approx(25e-9 * step)
        assert sum(found.seconds.values()) == pytest.approx(step * 0.001)
        assert found.last_step == pytest.approx(5 + step * 0.001)
        assert totals.read() == found
    file.close()


def test_a_course_merged_between_two_readings_is_read_again(tmp_path: Path) -> None:
    """As many records as before, which are others."""
    file, totals = opened(tmp_path), StepTotals(steps_path(tmp_path, 0))
    for step in range(1, 2 * COURSE):
        file.write(record(step).values())
        file.show_since((step + 1) * MS, step, 0)
        if step in (COURSE // 2 + 10, COURSE + 20):
            found = totals.read()
            assert found is not None
            assert found.steps == step
    file.close()


def test_another_process_and_a_late_loss(tmp_path: Path) -> None:
    file, totals = opened(tmp_path), StepTotals(steps_path(tmp_path, 0))
    assert StepTotals(steps_path(tmp_path, 1)).read() is None
    for step in range(1, 10):
        file.write(record(step).values())
        file.show_since(step * MS, step, 0)
    assert totals.read() is not None
    file.read_loss(2.5)
    found = totals.read()
    assert found is not None
    assert (found.steps, found.loss) == (9, 2.5)
    file.close()
    again = opened(tmp_path, process=18)
    again.write(record(1).values())
    again.show_since(MS, 3, 0)  # two further steps have no record yet
    found = totals.read()
    assert found is not None
    assert (found.steps, found.loss, found.head.process) == (3, None, 18)
    again.close()

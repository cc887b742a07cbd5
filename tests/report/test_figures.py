"""The numbers behind the pictures."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from made_run import made_run
from ronde.report.figures import LOSS_POINTS, RunFigures, figures_of, loss_curve, reduced
from ronde.report.run import look_at_run
from ronde.report.step_arrays import PARTS, of_records, read_course
from ronde.trace.step_file import RECENT, StepRecord, read_steps, steps_path

ONE = StepRecord(
    step=10, steps=10, begun=0, ended=1000, data=500, forward=0, backward=0, optimizer=0, waited=500,
    samples=0, resident=0, device=0, sent=(0, 0, 0, 0), collectives=0, last=0, late=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("made") / "run", steps=600, slow=1)


@pytest.fixture(scope="module")
def figures(folder: Path) -> RunFigures:
    return figures_of(look_at_run(folder))


@pytest.mark.parametrize("steps", [3, RECENT + 40, 4600])
def test_arrays_hold_the_records_of_the_file(tmp_path: Path, steps: int) -> None:
    path = steps_path(made_run(tmp_path / "run", ranks=1, steps=steps), 0)
    read, course = read_steps(path), read_course(path)
    assert read is not None
    for records, found in ((read.course, course.whole), (read.recent, course.recent)):
        assert found.tobytes() == of_records(*records).tobytes()


def test_a_record_that_does_not_continue_the_one_before_is_left_out(folder: Path, tmp_path: Path) -> None:
    data = bytearray(steps_path(folder, 0).read_bytes())
    place = 4096 + (512 + 7) * 168
    data[place : place + 168] = data[place - 168 : place]
    path = tmp_path / "rank-0.steps"
    path.write_bytes(data)
    read = read_steps(path)
    assert read is not None
    assert read_course(path).whole["step"].tolist() == [each.step for each in read.course]


def test_a_curve_has_few_points_and_ends_where_the_run_does(figures: RunFigures) -> None:
    loss = figures.loss
    assert LOSS_POINTS / 2 <= len(loss.step) <= LOSS_POINTS + 1
    assert loss.step[-1] == 600
    assert (np.diff(loss.step) > 0).all()
    assert loss.mean[0] > 2 > 0.1 > loss.mean[-1]
    assert (loss.low <= loss.mean + 1e-12).all()
    assert (loss.mean <= loss.high + 1e-12).all()


def test_a_spike_stays_in_the_band_of_a_curve() -> None:
    records = [
        dataclasses.replace(ONE, step=n, steps=1, loss=float(n == 500), losses=1) for n in range(1, 1001)
    ]
    loss = loss_curve(of_records(*records), 50)
    assert len(loss.step) <= 51
    assert loss.high.max() == 1 > loss.mean.max()


def test_a_loss_that_is_no_number_is_left_out_of_the_curve(tmp_path: Path) -> None:
    loss = figures_of(look_at_run(made_run(tmp_path / "run", nan_from=200))).loss
    assert loss.step[-1] < 202
    assert loss.broken == 200


def test_what_was_done_is_divided_by_time(figures: RunFigures) -> None:
    samples, steps = figures.done
    assert (samples.sum(), steps.sum()) == (pytest.approx(600 * 32), pytest.approx(600))
    assert samples / np.diff(figures.edges) == pytest.approx(3200)
    assert figures.seconds == pytest.approx(6.0)


def test_parts_of_a_rank_add_up_to_its_time(figures: RunFigures) -> None:
    quick, slow = figures.ranks
    assert quick.spent.sum() == pytest.approx(6.0)
    assert (quick.waited, slow.waited) == (pytest.approx(1.2), 0)
    assert quick.usual.sum() == pytest.approx(0.01)
    assert quick.over_time.sum(axis=0) == pytest.approx(np.diff(figures.edges))
    assert quick.over_time[PARTS.index("communication")] == pytest.approx(0.2 * np.diff(figures.edges))


def test_a_record_of_many_steps_is_divided_among_columns() -> None:
    found = reduced(of_records(ONE), of_records(), np.linspace(0, 1000, 5))
    assert found.over_time[PARTS.index("data")] * 1e9 == pytest.approx([125] * 4)


def test_the_time_between_two_records_is_no_part() -> None:
    later = dataclasses.replace(ONE, step=20, begun=3000, ended=4000)
    found = reduced(of_records(ONE, later), of_records(), np.linspace(0, 4000, 5))
    assert found.over_time.sum(axis=0) * 1e9 == pytest.approx([1000, 0, 0, 1000])


def test_memory_is_the_most_of_each_column_and_lasts_until_it_is_known_anew() -> None:
    records = [dataclasses.replace(ONE, resident=each, begun=at, ended=at + 100)
               for at, each in ((100, 7), (200, 9), (300, 8), (800, 3))]  # fmt: skip
    found = reduced(of_records(*records), of_records(), np.linspace(0, 900, 10)).memory
    assert math.isnan(found[0])
    assert found[1:].tolist() == [7, 9, 8, 8, 8, 8, 8, 3]


def test_the_rank_that_comes_last_is_found(figures: RunFigures) -> None:
    quick, slow = figures.ranks
    assert (quick.came_last, quick.late) == (0, 0)
    assert (slow.came_last, slow.late) == (0.75, pytest.approx(0.6))


def test_bytes_are_summed_by_route(figures: RunFigures) -> None:
    assert figures.ranks[0].routes() == {"shared memory": 600 << 20}


def test_rates_are_those_of_the_last_seconds(figures: RunFigures) -> None:
    main = figures.ranks[0]
    assert (main.steps_per_second, main.samples_per_second) == (pytest.approx(100), pytest.approx(3200))


def test_a_run_without_records_has_figures(tmp_path: Path) -> None:
    found = figures_of(look_at_run(made_run(tmp_path / "run", ranks=1, steps=0)))
    (rank,) = found.ranks
    assert (rank.pace, rank.peak, rank.spent.sum(), len(found.loss.step)) == (None, 0, 0, 0)

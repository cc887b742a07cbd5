"""The numbers behind the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from made_run import made_run
from ronde.report import series
from ronde.report.chart import nice_ticks
from ronde.report.run import read_run
from ronde.trace.step_file import StepRecord, StepsOfRank


@pytest.fixture
def ranks(tmp_path: Path) -> Sequence[StepsOfRank]:
    return [each.steps for each in read_run(made_run(tmp_path / "run", steps=600, slow=1)).ranks]


def test_a_curve_has_few_points_and_ends_where_the_run_does(ranks: Sequence[StepsOfRank]) -> None:
    points = series.losses(ranks[0].course)
    assert 200 <= len(points) <= series.POINTS + 1
    assert points[-1][0] == 600
    assert points == sorted(points)
    assert points[0][1] > 2 > 0.1 > points[-1][1]


def test_a_loss_that_is_no_number_is_left_out_of_the_curve(tmp_path: Path) -> None:
    run = read_run(made_run(tmp_path / "run", nan_from=200))
    points = series.losses(run.ranks[0].steps.course)
    assert points[-1][0] < 202


def test_throughput_is_that_of_samples_or_of_steps(ranks: Sequence[StepsOfRank]) -> None:
    points, unit = series.throughput(ranks[0].course, 1)
    assert unit == "samples/s"
    assert {round(value) for _, value in points} == {3200}
    assert points[-1][0] == pytest.approx(6.0)
    bare = [StepRecord.of([*each.values()[:9], 0, *each.values()[10:]]) for each in ranks[0].course]
    points, unit = series.throughput(bare, 1)
    assert (unit, round(points[0][1])) == ("steps/s", 100)


def test_parts_of_a_rank_add_up_to_its_time(ranks: Sequence[StepsOfRank]) -> None:
    for rank in ranks:
        spent = series.by_phase(rank.course)
        assert sum(spent.values()) == pytest.approx(6.0)
    assert series.by_phase(ranks[0].course)["communication"] == pytest.approx(1.2)
    assert series.by_phase(ranks[1].course)["communication"] == 0


def test_shares_over_time_add_up_to_one(ranks: Sequence[StepsOfRank]) -> None:
    columns = series.over_time(ranks, 1)
    assert [round(at, 3) for at, _ in columns[-1:]] == [6.0]
    for _, shares in columns:
        assert sum(shares.values()) == pytest.approx(1.0)
        assert shares["communication"] == pytest.approx(0.1)
    assert series.over_time([], 0) == []


def test_a_record_of_many_steps_is_divided_among_columns(tmp_path: Path) -> None:
    one = StepRecord(
        step=10, steps=10, begun=0, ended=1000, data=500, forward=0, backward=0, optimizer=0, waited=500,
        samples=0, resident=0, device=0, sent=(0, 0, 0, 0), collectives=0, last=0, late=0,
    )  # fmt: skip
    rank = StepsOfRank(
        rank=0, world_size=1, host="", process=0, wall=0, monotonic=0, offset=0, phase=0, steps=10, samples=0,
        since=0, ended=True, course=(one,), recent=(),
    )  # fmt: skip
    columns = series.over_time([rank], 0, columns=4)
    assert [(round(at * 1e9), shares["data"]) for at, shares in columns] == [
        (250, 0.5), (500, 0.5), (750, 0.5), (1000, 0.5),
    ]  # fmt: skip


def test_the_rank_that_comes_last_is_found(ranks: Sequence[StepsOfRank]) -> None:
    quick, slow = series.stragglers(ranks)
    assert (quick.last, quick.late, quick.waited) == (0, 0, pytest.approx(1.2))
    assert (slow.last, slow.late, slow.waited) == (0.75, pytest.approx(0.6), 0)


def test_bytes_are_summed_by_route(ranks: Sequence[StepsOfRank]) -> None:
    assert series.by_route(ranks[0].course) == {"shared memory": 600 << 20}


def test_rates_are_those_of_the_last_seconds(ranks: Sequence[StepsOfRank]) -> None:
    assert series.rates(ranks[0]) == (pytest.approx(100), pytest.approx(3200))


@pytest.mark.parametrize(("low", "high"), [(0, 1e-9), (0.3, 0.31), (-5, 5), (0, 123456), (7, 7)])
def test_ticks_are_few_and_lie_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 1 <= len(ticks) <= 8
    assert all(low - 1e-12 <= tick <= high + 1e-12 for tick in ticks)

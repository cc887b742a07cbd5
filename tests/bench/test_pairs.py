from __future__ import annotations

import pytest

from bench.samples import pair, sample
from ronde.bench.pairs import Pair, Result, alternate, check_same_training, measure
from ronde.bench.sample import Sample
from ronde.errors import BenchError


def test_who_goes_first_changes_with_every_pair() -> None:
    assert alternate(5) == [True, False, True, False, True]


def test_runs_alternate_and_never_overlap() -> None:
    order: list[str] = []

    def run(name: str, speed: float) -> Sample:
        order.append(name)
        return sample(speed)

    heard: list[tuple[int, bool]] = []

    def progress(number: int, measured: Pair) -> None:
        heard.append((number, measured.ours_first))

    result = measure("mlp", 3, lambda: run("ours", 90), lambda: run("peer", 100), progress)
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert heard == [(1, True), (2, False), (3, True)]
    assert result.ratio.median == pytest.approx(0.9)


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    result = Result(workload="mlp", pairs=(pair(100, 100), pair(50, 40), pair(30, 60)))
    assert result.ratio.median == 1.0
    assert result.ours.median / result.peer.median == pytest.approx(50 / 60)


def test_what_is_added_is_time_behind_the_peer() -> None:
    result = Result(workload="mlp", pairs=(pair(50, 100),))
    assert result.added_microseconds.median == pytest.approx(100_000)
    assert result.added_wall_seconds.median == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"threads": 2}, "threads is 1 in ronde's and 2"),
        ({"steps": 11}, "steps is 10"),
        ({"workload": "gpt"}, "workload is mlp"),
        ({"torch": "2.12.0"}, "torch is 2.13.0"),
        ({"loss": 1.8}, "did not train alike"),
        ({"loss": float("nan")}, "did not train alike"),
    ],
)
def test_different_work_is_not_compared(changed: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        check_same_training(Pair(ours=sample(100), peer=sample(100, **changed), ours_first=True))


def test_rounding_is_no_difference() -> None:
    check_same_training(Pair(ours=sample(100), peer=sample(90, loss=2.001), ours_first=True))

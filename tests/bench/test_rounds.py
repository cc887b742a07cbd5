from __future__ import annotations

import dataclasses

import pytest

from bench.samples import result, sample
from ronde.bench.contenders import Contender
from ronde.bench.report import Result
from ronde.bench.rounds import check_same_training, measure, orders
from ronde.bench.sample import Sample
from ronde.bench.spread import Spread
from ronde.errors import BenchError


def test_two_contenders_alternate() -> None:
    assert orders(["a", "b"], 3) == [("a", "b"), ("b", "a"), ("a", "b")]


def test_each_of_three_goes_first_equally_often() -> None:
    assert orders(["a", "b", "c"], 4) == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"), ("a", "b", "c")]


def contender(name: str, speed: float, order: list[str], **changed: object) -> Contender:
    def run() -> Sample:
        order.append(name)
        return sample(speed, **changed)

    return Contender(name=name, command=f"python {name}", run=run)


def test_runs_alternate_and_never_overlap() -> None:
    order: list[str] = []
    heard: list[str] = []
    contenders = [contender("ronde", 90, order), contender("ddp", 100, order)]
    measured = measure("mlp", contenders, rounds=3, progress=heard.append)
    assert order == ["ronde", "ddp", "ddp", "ronde", "ronde", "ddp"]
    assert [each.partition(":")[0] for each in heard] == [f"mlp, round {n} of 3" for n in (1, 2, 3)]
    assert heard[0].endswith("ddp 100.0 (ratio 0.900)")
    assert [each.samples_per_second for each in measured["ddp"]] == [100, 100, 100]


def median(row: Result, quantity: str) -> float:
    return Spread.of(row.samples[quantity]).median


def test_each_peer_is_compared_with_our_run_of_its_round() -> None:
    ddp, fabric = result("mlp", ronde=[100, 50], ddp=[100, 40], fabric=[50, 100])
    assert median(ddp, "ratio") == pytest.approx((1 + 1.25) / 2)
    assert median(fabric, "ratio") == pytest.approx((2 + 0.5) / 2)


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    (row,) = result("mlp", ronde=[100, 50, 30], ddp=[100, 40, 60])
    assert median(row, "ratio") == 1.0
    assert row.samples["of medians"] == pytest.approx((50 / 60,))


def test_time_is_added_to_that_of_the_peer() -> None:
    (row,) = result("mlp", ronde=[50], plain=[100])
    assert median(row, "added") == pytest.approx(100_000)
    assert median(row, "added part") == pytest.approx(100)
    (start,) = result("start-up", ronde=[50], plain=[100])
    assert median(start, "added to the whole run") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"threads": 2}, "threads is 1 in ronde's and 2 in fabric's"),
        ({"steps": 11}, "steps is 10"),
        ({"batch_size": 20}, "batch_size is 10"),
        ({"workload": "gpt"}, "workload is mlp"),
        ({"torch": "2.12.0"}, "torch is 2.13.0"),
        ({"device": "H200"}, "device is cpu"),
        ({"loss": 1.8}, "did not train alike"),
        ({"loss": float("nan")}, "did not train alike"),
    ],
)
def test_different_work_is_not_compared(changed: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        check_same_training(sample(100), sample(100, **changed), peer="fabric")


def test_a_round_with_different_work_ends_the_measurement() -> None:
    contenders = [contender("ronde", 90, []), contender("ddp", 100, [], loss=1.0)]
    with pytest.raises(BenchError, match="with ddp"):
        measure("mlp", contenders, rounds=3, progress=lambda _: None)


def test_processes_without_communication_may_train_otherwise_but_must_do_the_same_work() -> None:
    ours, limit = contender("ronde", 90, []), contender("apart", 100, [], loss=1.0)
    apart = dataclasses.replace(limit, trains_alike=False)
    assert measure("mlp", [ours, apart], rounds=1, progress=lambda _: None)["apart"][0].loss == 1.0
    other = dataclasses.replace(contender("apart", 100, [], threads=2), trains_alike=False)
    with pytest.raises(BenchError, match="threads is 1 in ronde's and 2 in apart's"):
        measure("mlp", [ours, other], rounds=1, progress=lambda _: None)


def test_rounding_is_no_difference() -> None:
    check_same_training(sample(100), sample(90, loss=2.001), peer="ddp")


def test_dropout_of_its_own_is_allowed_more() -> None:
    check_same_training(sample(100), sample(90, loss=1.7), peer="ddp", tolerance=0.3)


def failing(name: str, times: int, order: list[str]) -> Contender:
    def run() -> Sample:
        order.append(name)
        if order.count(name) <= times:
            raise BenchError("it ended with exit code -6")
        return sample(100)

    return Contender(name=name, command=f"python {name}", run=run, retries=0 if name == "ronde" else 2)


def test_a_peer_that_fails_once_runs_again_and_the_round_says_so() -> None:
    order: list[str] = []
    contenders = [contender("ronde", 90, order), failing("ddp", 1, order)]
    heard: list[str] = []
    measure("mlp", contenders, rounds=2, progress=heard.append)
    assert order == ["ronde", "ddp", "ddp", "ddp", "ronde"]
    assert heard[0] == "ddp failed in this round and ran once more: it ended with exit code -6"
    assert len(heard) == 3


@pytest.mark.parametrize(("name", "times"), [("ddp", 3), ("ronde", 1)])
def test_a_peer_that_always_fails_and_ourselves_end_the_measurement(name: str, times: int) -> None:
    order: list[str] = []
    others = [contender(other, 90, order) for other in ("ronde", "ddp") if other != name]
    with pytest.raises(BenchError, match="exit code -6"):
        measure("mlp", [*others, failing(name, times, order)], rounds=1, progress=lambda _: None)
    assert order.count(name) == times

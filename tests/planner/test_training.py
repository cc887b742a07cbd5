"""Time and price of a whole training."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ronde.plan import expand
from ronde.planner.cluster import Cluster, Reliability
from ronde.planner.cluster_file import parse_cluster, preset_text, read_cluster
from ronde.planner.report import report
from ronde.planner.search import search
from ronde.planner.training import Budget, checkpoint_interval, training_cost
from ronde.planner.transformer import MODELS, transformer_graph

_DAY = 86400.0


def cluster(**reliability: float) -> Cluster:
    return dataclasses.replace(
        read_cluster("dgx-a100").resized(64), reliability=Reliability(**reliability), price=2.0
    )


def simulated(work: float, interval: float, checkpoint: float, restart: float, between: float) -> float:
    """Return the mean seconds of trainings whose failures are drawn from an exponential distribution."""
    random = np.random.default_rng(0)
    totals = []
    for _ in range(200):
        clock, done, failure = 0.0, 0.0, random.exponential(between)
        while done < work:
            end = clock + min(interval, work - done) + checkpoint
            if end <= failure:
                clock, done = end, done + interval
                continue
            clock = failure
            failure = clock + random.exponential(between)
            # A failure during the restart begins it anew.
            while clock + restart > failure:
                clock, failure = failure, failure + random.exponential(between)
            clock += restart
        totals.append(clock)
    return float(np.mean(totals))


def test_a_training_without_failures_is_its_steps() -> None:
    found = training_cost(cluster(), Budget(samples=1e6, price=2.0), batch=1000, step=10.0, state=1e12)
    assert (found.steps, found.seconds, found.interval, found.lost) == (1000, 10_000, None, 0)
    assert found.price == pytest.approx(2.0 * 64 * 10_000 / 3600)


def test_failures_cost_what_a_simulation_loses() -> None:
    """Eight nodes that fail every 400 hours each, checkpoints of 50 s, restarts of 10 minutes."""
    where = cluster(between=400 * 3600.0, restart=600.0, storage=2.5e9)
    found = training_cost(where, Budget(samples=1e6), batch=1, step=1.0, state=1e12)
    assert found.interval is not None
    assert found.checkpoint == pytest.approx(50)
    assert found.interval == pytest.approx(checkpoint_interval(50, 180_000))
    assert found.seconds == pytest.approx(simulated(1e6, found.interval, 50, 600, 180_000), rel=0.01)
    for other in (found.interval / 2, 2 * found.interval):
        assert simulated(1e6, other, 50, 600, 180_000) > found.seconds


def test_young_is_the_limit_of_short_checkpoints() -> None:
    assert checkpoint_interval(1.0, 1e8) == pytest.approx(math.sqrt(2e8), rel=1e-3)


def test_a_missed_deadline_names_the_devices_that_would_do() -> None:
    graph = transformer_graph(dataclasses.replace(MODELS["llama2-7b"], batch=512))
    where = dataclasses.replace(read_cluster("dgx-a100"), price=2.0)
    steps = 100
    budget = Budget(samples=512.0 * steps, price=2.0)
    plan = expand("precision=bf16")
    slow = search(graph, where, plan, top=1, budget=budget).choices[0].training
    assert slow is not None
    bounded = dataclasses.replace(budget, deadline=slow.seconds / 3)
    answer = search(graph, where, plan, top=1, budget=bounded)
    assert answer.in_time is not None
    assert answer.in_time.devices in {24, 32, 40}
    assert answer.in_time.training is not None
    assert answer.in_time.training.seconds <= slow.seconds / 3
    text = report(answer)
    assert "fewest devices that end by the deadline" in text
    assert "price" in text
    assert "node-mtbf-hours, checkpoint-gb-s" in text


def test_a_cluster_file_has_prices_and_failures() -> None:
    text = "price-per-hour = 1.5\nnode-mtbf-hours = 1000\ncheckpoint-gb-s = 2\n" + preset_text("dgx-a100")
    found = parse_cluster(text, "mine.toml")
    assert found.price == 1.5
    assert found.reliability == Reliability(between=3.6e6, restart=300.0, storage=2e9)

"""Metrics are those of the files in a run's directory, and no counter goes backward."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from made_run import WALL, made_run
from ronde.report.metrics.exposition import text
from ronde.report.metrics.families import FAMILIES
from ronde.report.metrics.run_metrics import RunFacts, RunMetrics
from ronde.trace.events import write_event
from ronde.trace.explanation import Explanation, write_explanation
from ronde.trace.run_directory import RunDirectory

FACTS = RunFacts(run_id="of-today", script="train.py", plan="zero2", seed=5, checkpoint_every=(0, 600.0))


def one(values: object, name: str, *labels: str) -> float:
    assert isinstance(values, dict)
    return values[f"ronde_run_{name}"][labels]


def test_values_of_a_run(tmp_path: Path) -> None:
    values = RunMetrics(made_run(tmp_path, slow=1), FACTS).values()
    assert one(values, "ranks") == 2
    assert one(values, "hosts") == 1
    assert one(values, "step") == one(values, "steps_total", "1") == 300
    assert one(values, "samples_total") == 9600
    assert one(values, "loss") == pytest.approx(2.3 * math.exp(-300 / 80) + 0.02)
    assert one(values, "phase_seconds_total", "0", "communication") == pytest.approx(0.6)
    assert one(values, "phase_seconds_total", "1", "communication") == 0
    assert one(values, "phase_seconds_total", "1", "other") == pytest.approx(0.15)
    assert one(values, "last_arrivals_total", "1") == 900
    assert one(values, "others_wait_seconds_total", "1") == pytest.approx(0.3)
    assert one(values, "sent_bytes_total", "0", "shared memory") == 300 << 20
    assert one(values, "resident_memory_bytes", "1") == 301 << 20
    assert one(values, "last_step_timestamp_seconds", "0") == pytest.approx(WALL / 1e9 + 3)
    assert one(values, "info", "of-today", "train.py", "zero2", "5", __import__("ronde").__version__) == 1
    assert "ronde_run_device_memory_bytes" not in values
    assert "ronde_run_last_cause_info" not in values


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    values = RunMetrics(made_run(tmp_path, nan_from=290), FACTS).values()
    assert math.isnan(one(values, "loss"))
    assert "ronde_run_loss NaN" in text(values).decode()


def test_counters_go_on_after_a_restart_and_with_fewer_ranks(tmp_path: Path) -> None:
    metrics = RunMetrics(made_run(tmp_path, ranks=3, steps=50), FACTS)
    first = metrics.values()
    write_explanation(Explanation(cause="oom", rank=2, summary="memory ran out", host="b"), tmp_path)
    write_event(tmp_path, "end", "rank 2 on b failed: no memory [R196]", exit_code=1)
    write_event(tmp_path, "restart", "restart 1 of 3", reason="failure")
    write_event(tmp_path, "restart", "going on with 2 ranks")
    RunDirectory(path=tmp_path, run_id="").begin_attempt(1)
    between = metrics.values()
    made_run(tmp_path, ranks=2, steps=20)
    later = metrics.values()
    afresh = RunMetrics(tmp_path, FACTS).values()
    assert [one(each, "steps_total", "0") for each in (first, between, later)] == [50, 50, 70]
    assert one(later, "steps_total", "2") == 50
    assert one(later, "samples_total") == 70 * 32
    assert (one(later, "step"), one(later, "ranks"), one(later, "restarts_total", "failure")) == (20, 2, 1)
    assert one(later, "last_cause_info", "oom", "R196", "2", "b") == 1
    assert later == afresh


def test_a_file_that_cannot_be_read_in_full_takes_nothing_back(tmp_path: Path) -> None:
    metrics = RunMetrics(made_run(tmp_path, steps=10), FACTS)
    metrics.values()
    os.truncate(tmp_path / "rank-1.steps", 100)
    values = metrics.values()
    assert one(values, "steps_total", "1") == 10
    assert ("1",) not in values["ronde_run_last_step_timestamp_seconds"]


def test_checkpoints(tmp_path: Path) -> None:
    metrics = RunMetrics(made_run(tmp_path, steps=3), FACTS)
    before = metrics.values()
    assert (one(before, "checkpoints_total"), one(before, "checkpoint_interval_seconds")) == (0, 600)
    assert "ronde_run_checkpoint_last_timestamp_seconds" not in before
    for step in (5, 9):
        facts = {"step": step, "held_up": 0.25, "written": 1.5, "nbytes": 1000 * step}
        write_event(tmp_path, "checkpoint", f"step {step} is saved", rank=0, **facts)
    after = metrics.values()
    assert (one(after, "checkpoints_total"), one(after, "checkpoint_last_step")) == (2, 9)
    assert one(after, "checkpoint_last_bytes") == 9000
    assert one(after, "checkpoint_paused_seconds_total") == 0.5
    assert one(after, "checkpoint_write_seconds_total") == 3


def test_files_of_an_earlier_run_are_left_out(tmp_path: Path) -> None:
    facts = RunFacts(run_id="x", script="train.py", plan="ddp", seed=5, since=WALL / 1e9 + 1)
    values = RunMetrics(made_run(tmp_path), facts).values()
    assert "ronde_run_steps_total" not in values
    assert "ronde_run_checkpoints_total" not in values


def test_prometheus_reads_the_text(tmp_path: Path) -> None:
    values = RunMetrics(made_run(tmp_path), FACTS).values()
    read = {
        sample.name: family.documentation
        for family in text_string_to_metric_families(text(values).decode())
        for sample in family.samples
    }
    helps = {family.name: family.help for family in FAMILIES}
    assert read == {name: helps[name] for name in values}


def test_names_follow_prometheus_conventions() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.help.endswith("."), family.name
        assert not {"job", "instance"} & set(family.labels), "Prometheus sets these"

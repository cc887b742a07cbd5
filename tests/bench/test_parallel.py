"""Figures of meshes: which there are, what is ideal, what a table and a picture show."""

from __future__ import annotations

import dataclasses

import pytest

from bench.samples import MACHINE
from ronde.bench.kinds import read_report
from ronde.bench.parallel.measure import meshes, timelines_of
from ronde.bench.parallel.report import ONE_PROCESS, MeshRun, ParallelReport, RankFigures, Span, table

RANK = RankFigures(
    memory={"parameters": 2**20, "activations": 2**23},
    sent=3_000_000,
    waited=0.25,
    timeline=(Span(name="forward", begin=0.0, end=4.0), Span(name="wait", begin=1.0, end=2.0)),
)
PIPELINE = MeshRun(
    name="pipeline=2,micro-batches=4",
    ways=2,
    step_seconds=(0.070, 0.065),
    stages=2,
    micro_batches=4,
    ranks=(RANK, RANK),
)
REPORT = ParallelReport(
    machine=MACHINE,
    workload="transformer-512",
    parameters=2_000_000,
    results=(MeshRun(name=ONE_PROCESS, ways=1, step_seconds=(0.1, 0.1)), PIPELINE),
    refused=("tensor=2,pipeline=2",),
)


def test_meshes_are_all_ways_to_make_up_the_ranks() -> None:
    assert meshes(4, [8]) == [
        "ddp",
        "data=2,tensor=2",
        "tensor=4",
        "data=2,pipeline=2,micro-batches=8",
        "tensor=2,pipeline=2,micro-batches=8",
        "pipeline=4,micro-batches=8",
    ]


def test_the_ideal_has_a_share_and_a_bubble() -> None:
    assert PIPELINE.ideal == 5 / 8
    assert PIPELINE.bubble == 1 / 5
    assert dataclasses.replace(PIPELINE, schedule="interleaved").bubble == 1 / 9
    assert dataclasses.replace(PIPELINE, schedule="zero-bubble").ideal == pytest.approx(13 / 24)


def test_the_table_compares_round_by_round() -> None:
    rows = [line.split() for line in table(REPORT).splitlines()]
    assert [PIPELINE.name, "68", "0.675", "1.08", "1.0", "8", "3.0", "25%", "20%"] in rows
    assert [ONE_PROCESS.split()[0], "process", "100"] in rows
    assert table(REPORT).endswith("not in this version: tensor=2,pipeline=2")


def test_a_report_is_read_as_it_was_written() -> None:
    assert read_report(REPORT.to_json()) == REPORT


def test_a_timeline_begins_with_its_step() -> None:
    def event(name: str, kind: str, rank: int, begin: float, length: float) -> dict[str, object]:
        return {"ph": "X", "name": name, "cat": kind, "pid": rank, "ts": begin, "dur": length}

    events = [
        {"ph": "M", "name": "process_name", "pid": 0},
        event("step 5", "step", 0, 1000.0, 10_000.0),
        event("forward", "phase", 0, 1000.0, 4000.0),
        event("wait", "wait", 0, 2000.0, 1.0),  # too short to be seen
        event("step 5", "step", 1, 1500.0, 10_000.0),
        event("backward", "phase", 1, 3000.0, 2000.0),
    ]
    assert timelines_of(events, 2) == [
        (Span(name="forward", begin=0.0, end=4.0),),
        (Span(name="backward", begin=2.0, end=4.0),),
    ]


def test_the_picture_has_a_panel_for_each_plan() -> None:
    pytest.importorskip("matplotlib")
    from ronde.bench.parallel.picture import draw

    (axes,) = draw(REPORT).axes
    assert axes.get_title(loc="left") == PIPELINE.name
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]

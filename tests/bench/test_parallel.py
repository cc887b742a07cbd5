"""Figures of meshes: which there are, their ideal, their rows."""

from __future__ import annotations

import pytest

from bench.samples import MACHINE
from ronde.bench.meshes import ONE_PROCESS, QUANTITIES, RankFigures, meshes, notes_of, row_of
from ronde.bench.report import Report
from ronde.bench.table import table

RANK = RankFigures(memory={"parameters": 2**20, "activations": 2**23}, sent=3_000_000, waited=0.25)
ALONE = row_of("gpt", ONE_PROCESS, (0.1, 0.1), (0.1, 0.1), 1, (1, 1, "gpipe"), ())
PLAN = "pipeline=2,micro-batches=4"
PIPELINE = row_of("gpt", PLAN, (0.070, 0.065), (0.1, 0.1), 2, (2, 4, "gpipe"), (RANK, RANK))


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
    assert PIPELINE.samples["bubble"] == (20.0,)
    assert PIPELINE.samples["of one process"] == pytest.approx((0.7, 0.65))
    assert PIPELINE.samples["of the ideal"] == pytest.approx((0.7 * 8 / 5, 0.65 * 8 / 5))
    interleaved = row_of("gpt", PLAN, (0.07,), (0.1,), 2, (2, 4, "interleaved"), ())
    assert interleaved.samples["bubble"] == pytest.approx((100 / 9,))
    halved = row_of("gpt", PLAN, (0.07,), (0.1,), 2, (2, 4, "zero-bubble"), ())
    assert halved.samples["of the ideal"] == pytest.approx((0.7 / (13 / 24),))


def test_the_table_has_the_rank_with_most() -> None:
    report = Report(
        kind="parallel",
        machine=MACHINE,
        settings={},
        quantities=QUANTITIES,
        results=(ALONE, PIPELINE),
        notes=notes_of(["tensor=2,pipeline=2"]),
    )
    *_, row = [line for line in table(report).splitlines() if PLAN in line]
    assert row.split()[-9:] == ["0.6750", "1.080", "1.00", "MiB", "8.00", "MiB", "3", "25", "20"]
    assert table(report).endswith("not in this version: tensor=2,pipeline=2")
    assert PIPELINE.samples["sent of each rank"] == (3.0, 3.0)

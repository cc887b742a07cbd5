from __future__ import annotations

import pytest

from bench.samples import MACHINE
from ronde.bench.collectives.cases import Case
from ronde.bench.collectives.measure import NOTES, QUANTITIES, rows_of
from ronde.bench.report import Report
from ronde.bench.table import table

REDUCE = rows_of(
    Case(operation="all-reduce", nbytes=4000),
    {"shared-memory": [10, 20, 30], "shared-buckets": [8, 8, 8], "gloo": [100, 400, 150]},
)
BARRIER = rows_of(
    Case(operation="barrier", nbytes=0), {"shared-memory": [5, 5, 5], "gloo": [1500, 1500, 2000]}
)


def test_each_algorithm_is_compared_with_each_peer_round_by_round() -> None:
    memory, buckets = REDUCE
    assert memory.labels == {
        "operation": "all-reduce", "size": "4 KB", "by": "shared memory", "against": "Gloo",
    }  # fmt: skip
    assert memory.samples["ratio"] == (10, 20, 5)
    assert memory.samples["of medians"] == (7.5,)
    assert buckets.labels["by"] == "shared buckets"
    assert [row.labels["size"] for row in BARRIER] == [""]


def test_without_a_peer_times_stand_alone() -> None:
    (row,) = rows_of(Case(operation="barrier", nbytes=0), {"shared-memory": [5]})
    assert row.samples == {"time": (5,)}


def test_the_table() -> None:
    report = Report(
        kind="collectives",
        machine=MACHINE,
        settings={},
        quantities=QUANTITIES,
        results=(*REDUCE, *BARRIER),
        notes=NOTES,
    )
    rows = [line.split() for line in table(report).splitlines()]
    assert "all-reduce 4 KB shared memory Gloo 20 150 7.500 10 (7.500 to 15)".split() in rows
    assert "barrier shared memory Gloo 5 1500 300 300 (300 to 350)".split() in rows


def test_a_panel_for_each_operation_has_a_bar_for_each_algorithm() -> None:
    pytest.importorskip("matplotlib")
    from ronde.bench.picture import draw

    report = Report(
        kind="collectives", machine=MACHINE, settings={}, quantities=QUANTITIES, results=tuple(REDUCE)
    )
    lengths = [bar.get_width() for axes in draw(report).axes for bar in axes.patches]
    assert lengths == [20, 8]

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.collectives.made_up import REPORT, report, result
from ronde.bench.collectives.picture import draw, save
from ronde.bench.collectives.table import show_time, table
from ronde.bench.kinds import read_report
from ronde.errors import UsageError


def test_json_and_back() -> None:
    assert read_report(REPORT.to_json()) == REPORT


def test_json_holds_the_figures() -> None:
    fields = json.loads(REPORT.to_json())
    assert fields["kind"] == "collectives"
    reduce, barrier = fields["results"]
    assert reduce["case"] == {"operation": "all-reduce", "nbytes": 4000}
    assert reduce["rounds"][1]["gloo"] == {"calls": 100, "seconds": pytest.approx(0.04)}
    assert reduce["figures"]["microseconds"]["gloo"]["median"] == pytest.approx(150)
    against = reduce["figures"]["against"]["shared-memory"]["gloo"]
    assert against["ratio_of_medians"] == pytest.approx(7.5)
    assert against["ratio"]["median"] == pytest.approx(10)
    assert list(barrier["figures"]["against"]) == ["shared-memory"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "collectives", "machine": 3}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a report of ronde bench"):
        read_report(text)


def test_table() -> None:
    assert table(REPORT).splitlines() == [
        "2 ranks of 1 thread on Example 9000, 2 cores, 16 GiB, load 0.1 before; python 3.11.7, torch 2.13.0",
        "",
        "operation   size           ronde   time  peer    time  of medians  median ratio     quartiles"
        "  rounds",
        "all-reduce  4 KB   shared memory  20 us  Gloo  150 us         7.5            10     7.5 to 15"
        "       3",
        "all-reduce  4 KB  shared buckets   8 us  Gloo  150 us        18.8          18.8  15.6 to 34.4"
        "       3",
        "barrier            shared memory   5 us  Gloo  1.5 ms         300           300    300 to 350"
        "       3",
        "",
        "MPI: not installed, so not measured; to install it: pip install 'ronde[mpi]'",
        "size: of the larger of a rank's two tensors. time: of one call among many, one behind the other,",
        "  median over all rounds",
        "ratio: the peer's time over ronde's, above 1 is faster: of the medians, and median and quartiles of",
        "  the ratios within a round",
        "shared buckets: the mean, with its division; all others leave that to the caller",
    ]


def test_what_is_installed_is_not_said_to_be_missing() -> None:
    measured = result("barrier", 0, shared_memory=[5], mpi=[4])
    shown = table(report(measured, versions={"mpi": "MPICH Version: 5.0.2"}))
    assert "MPICH Version: 5.0.2" in shown
    assert "not installed" not in shown


@pytest.mark.parametrize(
    ("microseconds", "shown"), [(1.234, "1.23 us"), (999, "999 us"), (67000, "67 ms"), (2.5e6, "2500 ms")]
)
def test_times(microseconds: float, shown: str) -> None:
    assert show_time(microseconds) == shown


def test_a_panel_for_each_operation_and_a_curve_for_each_contender(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    reduce, barrier, empty = draw(REPORT).axes[0], draw(REPORT).axes[1], draw(REPORT).axes[2:]
    assert [axes.get_title() for axes in (reduce, barrier)] == ["all-reduce", "barrier"]
    assert [curve.get_label() for curve in reduce.containers] == ["shared memory", "shared buckets", "Gloo"]
    assert [list(curve[0].get_ydata()) for curve in reduce.containers] == [
        pytest.approx([20]),
        pytest.approx([8]),
        pytest.approx([150]),
    ]
    assert len(barrier.containers) == 2
    assert not empty
    save(REPORT, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")

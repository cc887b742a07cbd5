from __future__ import annotations

import pytest

from bench.samples import report, result, sample
from ronde.bench.steps import compared, notes_of
from ronde.bench.table import shown, table

MACHINE = "dp on Example 9000, 2 cores, 16 GiB, load 0.1 before, python 3.11.7, torch 2.13.0, ranks 2, ddp"


def test_data_parallel() -> None:
    mlp = result("mlp", ronde=[110, 90, 98], ddp=[100, 100, 100], fabric=[50, 50, 50])
    assert table(report(*[mlp], notes=("a note",))).splitlines() == [
        MACHINE,
        "torch 2.13.0",
        "",
        "workload  contender  ronde samples/s  peer samples/s  of medians                     ratio",
        "mlp       DDP                     98             100      0.9800  0.9800 (0.9400 to 1.040)",
        "mlp       Fabric                  98              50       1.960    1.960 (1.880 to 2.080)",
        "",
        "a note",
    ]


def test_every_contender_stands_beside_the_limit() -> None:
    rows = table(report(result("mlp", ronde=[90, 80], ddp=[50, 40], apart=[100, 100]))).splitlines()[3:]
    assert [row.split()[-1] for row in rows[:1]] == ["limit"]
    assert [row.split("  ")[-1].strip() for row in rows[1:]] == [
        "0.8500 (0.8250 to 0.8750)",
        "0.4500 (0.4250 to 0.4750)",
        "1 (1 to 1)",
    ]
    assert [row[10:26].strip() for row in rows[1:]] == ["ronde", "DDP", "no communication"]


def test_notes_say_what_the_peers_compute_otherwise_and_the_method() -> None:
    notes = notes_of(["bert", "resnet18-bn"], "dlperf")
    assert any(each.startswith("resnet18-bn: the peers normalize with the statistics") for each in notes)
    assert any(each.startswith("bert: dropout is the single-device draw under ronde") for each in notes)
    assert any("20 steps ignored, 100 timed" in each for each in notes)
    assert len(notes_of(["mlp"], "global")) == 1


def test_overhead_has_steps_or_whole_runs() -> None:
    pair = {"ronde": [sample(50, wall_seconds=4.25)], "plain": [sample(50, wall_seconds=4.0)]}
    rows = [result("tiny", ronde=[50], plain=[100]), compared("start-up", pair)]
    lines = [line.split() for line in table(report(*rows, kind="overhead")).splitlines()]
    assert ["tiny", "plain", "100000", "100000", "100"] in lines
    assert ["start-up", "plain", "0.2500"] in lines


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12.345, "us", "12.35"),
        (1234.5, "us", "1234"),
        (2.0, "x", "2"),
        (4096, "bytes", "4.00 KiB"),
        (1e-9, "", "0.000000"),
    ],
)
def test_numbers_have_four_digits(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text

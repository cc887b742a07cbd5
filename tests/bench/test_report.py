from __future__ import annotations

import json
from pathlib import Path

from bench.samples import pair, sample
from ronde.bench.machine import Machine, cpu_model
from ronde.bench.pairs import Pair, Result
from ronde.bench.report import Report, data_parallel_table, overhead_table

MACHINE = Machine(cpu="Example 9000", cores=2, load=0.1, python="3.11.7", torch="2.13.0")


def report(*results: Result, kind: str = "dp", ranks: int = 2, threads: int | None = 1) -> Report:
    return Report(kind=kind, machine=MACHINE, ranks=ranks, threads=threads, results=results)


MLP = Result(workload="mlp", pairs=(pair(110, 100), pair(90, 100, ours_first=False), pair(98, 100)))


def test_json_and_back() -> None:
    written = report(MLP)
    assert Report.from_json(written.to_json()) == written


def test_json_holds_the_figures_and_the_machine() -> None:
    fields = json.loads(report(MLP).to_json())
    assert fields["machine"]["cpu"] == "Example 9000"
    assert fields["results"][0]["ratio"]["median"] == 0.98
    assert [each["ours_first"] for each in fields["results"][0]["pairs"]] == [True, False, True]


def test_data_parallel_table() -> None:
    assert data_parallel_table(report(MLP)).splitlines() == [
        "2 ranks of 1 thread on Example 9000, 2 cores, load 0.1 before; torch 2.13.0, python 3.11.7",
        "",
        "workload  ronde samples/s  DDP samples/s  ratio       quartiles  pairs",
        "mlp                  98.0          100.0  0.980  0.940 to 1.040      3",
        "",
        "ratio: ronde over hand-written DDP, median of the pairs' ratios",
    ]


def test_overhead_table() -> None:
    start = Result(
        workload="start-up",
        pairs=(Pair(ours=sample(50, wall_seconds=4.25), peer=sample(50, wall_seconds=4.0), ours_first=True),),
    )
    tiny = Result(workload="tiny", pairs=(pair(50, 100),))
    table = overhead_table(report(tiny, start, kind="overhead", ranks=1, threads=None))
    assert table.splitlines() == [
        "1 rank on Example 9000, 2 cores, load 0.1 before; torch 2.13.0, python 3.11.7",
        "",
        "workload  plain us/step  added us/step               quartiles  added %",
        "tiny           100000.0      +100000.0  +100000.0 to +100000.0  +100.00",
        "",
        "start-up: +0.250 s over plain python (quartiles +0.250 to +0.250 s, whole process)",
    ]


def test_the_processors_name_is_linuxs(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Example 9000\nmodel name\t: other\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Example 9000"
    assert cpu_model(tmp_path / "absent") != ""


def test_this_machine_is_described() -> None:
    here = Machine.here()
    assert here.cores >= 1
    assert here.torch[0].isdigit()

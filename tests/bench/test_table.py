from __future__ import annotations

from bench.samples import report, result, sample
from ronde.bench.rounds import Result, Round
from ronde.bench.table import table

MACHINE = "Example 9000, 2 cores, 16 GiB, load 0.1 before; python 3.11.7, torch 2.13.0"
LEGEND = (
    "ratio: ronde's samples/s over the peer's, above 1 is faster: of the medians over all rounds, and",
    "  median and quartiles of the ratios within a round",
)


def test_data_parallel() -> None:
    mlp = result("mlp", ronde=[110, 90, 98], ddp=[100, 100, 100], fabric=[50, 50, 50])
    versions = {"ddp": "torch 2.13.0", "fabric": "lightning-fabric 2.6"}
    assert table(report(mlp, versions=versions)).splitlines() == [
        f"2 ranks of 1 thread on {MACHINE}, lightning-fabric 2.6",
        "",
        "workload  ronde samples/s    peer  samples/s  of medians  median ratio       quartiles  rounds",
        "mlp                  98.0     DDP      100.0       0.980         0.980  0.940 to 1.040       3",
        "mlp                  98.0  Fabric       50.0       1.960         1.960  1.880 to 2.080       3",
        "",
        *LEGEND,
    ]


def test_what_the_peers_compute_otherwise_is_said() -> None:
    measured = [result(name, ronde=[100], ddp=[100]) for name in ("bert", "resnet18-bn")]
    shown = " ".join(table(report(*measured)).split())
    assert "resnet18-bn: the peers normalize with the statistics of each rank's own rows" in shown
    assert "bert: dropout is the single-device draw under ronde" in shown
    assert "own rows" not in table(report(result("mlp", ronde=[100], ddp=[100])))


def test_the_method_is_said() -> None:
    shown = table(report(result("mlp", ronde=[100], ddp=[100]), method="dlperf"))
    assert "the workload's batch on each rank, 20 steps ignored, 100 timed" in " ".join(shown.split())


def test_overhead() -> None:
    start = Result(
        workload="start-up",
        commands={"ronde": "", "plain": ""},
        rounds=(
            Round(samples={"ronde": sample(50, wall_seconds=4.25), "plain": sample(50, wall_seconds=4.0)}),
        ),
    )
    pair = {"ronde": sample(50, wall_seconds=5.0), "torchrun": sample(50, wall_seconds=6.0)}
    of_two = Result(
        workload="start-up-2", commands={"ronde": "", "torchrun": ""}, rounds=(Round(samples=pair),)
    )
    tiny = result("tiny", ronde=[50], plain=[100])
    shown = table(report(tiny, start, of_two, kind="overhead", ranks=1, threads=None, versions={}))
    assert shown.splitlines() == [
        f"1 rank on {MACHINE}",
        "",
        "workload  plain steps/s  plain us/step  added us/step               quartiles  added %",
        "tiny                 10       100000.0      +100000.0  +100000.0 to +100000.0  +100.00",
        "",
        "start-up: +0.250 s over plain python (quartiles +0.250 to +0.250 s, whole process)",
        "",
        "start-up-2: -1.000 s over torchrun (quartiles -1.000 to -1.000 s, whole process)",
    ]


def test_a_device_is_named() -> None:
    each = Round(samples={"ronde": sample(50, device="H200"), "plain": sample(50, device="H200")})
    measured = Result(workload="tiny", commands={"ronde": "", "plain": ""}, rounds=(each,))
    shown = table(report(measured, kind="overhead", ranks=1, threads=None, versions={}))
    assert shown.startswith("1 rank on H200, Example 9000, 2 cores")

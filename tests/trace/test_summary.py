"""The end summary: what is told, and of which rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ronde.trace.memory import Memory
from ronde.trace.step_clock import StepTimes
from ronde.trace.summary import RankSummary, read_summary, summary_lines

MAIN = RankSummary(
    rank=0,
    world_size=3,
    seconds=12.34,
    steps=480,
    samples=15360,
    steps_per_second=41.23,
    samples_per_second=1319.4,
    data=0.03,
    communication=0.12,
    algorithm="shared memory (all ranks are on one host)",
    sharded={"Encoder": 20, "Net": 480},
    notes=("Decoder runs in parts, not as one piece: it has hooks",),
)


def test_what_is_told() -> None:
    others = [dataclasses.replace(MAIN, rank=rank, communication=0.1) for rank in (1, 2)]
    assert summary_lines([MAIN, *others]) == [
        "480 optimizer steps in 12.3 s; from the second on 41.2 steps/s, 1319 samples/s, "
        "data 3%, compute 85%, communication 12% of that time",
        "gradients: shared memory (all ranks are on one host)",
        "on shards: Net (480 calls), Encoder (20 calls)",
        "Decoder runs in parts, not as one piece: it has hooks",
    ]


def test_the_rank_for_which_the_others_wait_is_named() -> None:
    slow = dataclasses.replace(MAIN, rank=2, data=0.5, communication=0.01)
    lines = summary_lines([MAIN, dataclasses.replace(MAIN, rank=1), slow])
    assert lines[1] == "the others waited for rank 2: data 50%, compute 49%, communication 1% of its time"


def test_a_step_that_is_too_small_is_told_of_all_ranks_together() -> None:
    small = StepTimes(whole=2e-3, waited=1e-3, own=0.8e-3, model=0.1e-3, rows=0.0, halted=0.0)
    ranks = [dataclasses.replace(MAIN, rank=rank, step_times=small) for rank in range(3)]
    assert summary_lines(ranks)[1].startswith("an undisturbed step took 2.0 ms on 3 ranks, ")
    large = dataclasses.replace(MAIN, rank=1, step_times=dataclasses.replace(small, waited=0.0, model=1e-3))
    assert len(summary_lines([ranks[0], large, ranks[2]])) == len(summary_lines(ranks)) - 1


def test_the_memory_of_the_rank_with_the_most_is_told() -> None:
    def using(rank: int, parameters: int) -> RankSummary:
        memory = Memory(peaks={"parameters": parameters << 20, "buckets": 5}, total=1 << 30, where="process")
        return dataclasses.replace(MAIN, rank=rank, memory=memory)

    lines = summary_lines([using(0, 3), using(1, 7), using(2, 7)])
    assert lines[3] == (
        "peak memory on rank 1, which had the most: parameters 7.00 MiB, buckets 5 B; process 1.00 GiB"
    )
    alone = summary_lines([dataclasses.replace(using(0, 3), world_size=1)])
    assert alone[1] == "peak memory: parameters 3.00 MiB, buckets 5 B; process 1.00 GiB"
    nothing = Memory(peaks={"parameters": 0}, total=1 << 30, where="process")
    assert not any("memory:" in line for line in summary_lines([dataclasses.replace(MAIN, memory=nothing)]))


def test_one_rank_and_few_steps() -> None:
    one = dataclasses.replace(
        MAIN,
        world_size=1,
        steps=1,
        seconds=3723.0,
        steps_per_second=None,
        samples_per_second=None,
        notes=(),
    )
    assert summary_lines([one]) == ["1 optimizer step in 1 h 2 min; one rank runs as plain python does"]
    computed = dataclasses.replace(one, compute_plan="recompute=full", notes=("Net has none",))
    assert summary_lines([computed]) == [
        "1 optimizer step in 1 h 2 min; one rank, recompute=full",
        "Net has none",
    ]
    none = dataclasses.replace(one, steps=0, seconds=125.2)
    assert summary_lines([none]) == ["no optimizer steps in 2 min 5 s; one rank runs as plain python does"]


def test_many_names_are_cut_short() -> None:
    many = dataclasses.replace(MAIN, sharded={f"M{place}": 10 - place for place in range(8)}, notes=())
    assert summary_lines([many])[-1].endswith("M5 (5 calls), and 2 more")


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.summary.json"
    assert read_summary(path) is None
    path.write_text(MAIN.to_json())
    assert read_summary(path) == MAIN
    memory = Memory(
        peaks={"parameters": 3, "activations": 4},
        total=9,
        where="device",
        on_host={"parameters": 2},
        settled={"parameters": 1},
    )
    measured = dataclasses.replace(MAIN, memory=memory)
    path.write_text(measured.to_json())
    assert read_summary(path) == measured
    small = StepTimes(whole=2e-3, waited=1e-3, own=0.8e-3, model=0.1e-3, rows=0.0, halted=0.0)
    timed = dataclasses.replace(MAIN, step_times=small)
    path.write_text(timed.to_json())
    assert read_summary(path) == timed
    path.write_text(MAIN.to_json()[:50])
    assert read_summary(path) is None
    assert summary_lines([]) == []

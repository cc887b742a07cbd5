"""A language model in bfloat16: as fast as plain torch, and smaller where a plan says so.

A billion parameters wait for a CUDA device; the same script and checks run on a small one on the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ronde.bench import steps
from ronde.bench.contenders import plain_words
from ronde.bench.memory.formula import Sizes, expected
from ronde.bench.memory.measure import sizes_of
from ronde.plan import expand
from ronde.trace.memory import Memory
from ronde.trace.run_directory import RunDirectory
from ronde.trace.summary import read_summary

ON_CUDA = (pytest.mark.gpu, pytest.mark.timeout(1800))
LARGE = pytest.param("lm-1b", "cuda", id="cuda", marks=ON_CUDA)
SMALL = pytest.param("lm-tiny", "cpu", id="cpu", marks=(pytest.mark.soak, pytest.mark.timeout(900)))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
# Each plan, and one that ought to need more than it.
SMALLER = {"recompute=selective": "ddp", "recompute=full": "recompute=selective", "micro-batches=4": "ddp"}
OFFLOADED = ("offload=optimizer", "zero3,offload=all")


@pytest.mark.parametrize(("workload", "device"), [SMALL, LARGE])
def test_one_rank_trains_as_plain_torch(workload: str, device: str) -> None:
    """`ronde bench overhead --workloads lm-1b --device cuda` has the figures."""
    report = steps.compare_overhead(
        [workload], device=device, rounds=1, steps=5, environment=ENVIRONMENT, progress=lambda _: None
    )
    (row,) = report.results
    assert row.samples["loss of ronde"] == pytest.approx(row.samples["loss of the peer"], rel=0.01)
    assert report.settings["device"] == device


def measured(workload: str, device: str, plan: str, place: Path) -> Memory:
    """What a rank held in a run of some steps; on the CPU one of two, because one alone is plain python."""
    ranks = "1" if device == "cuda" else "2"
    options = ("--ranks", ranks, "--plan", plan, "--seed", "0", "--run-dir", str(place))
    words = plain_words(workload, ("--warm-up", "2", "--steps", "2", "--device", device))
    environment = ENVIRONMENT if device == "cuda" else {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-m", "ronde", "run", *options, *words],
        env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    summary = read_summary(RunDirectory(path=place, run_id="").summary(0))
    assert summary is not None
    assert summary.memory is not None
    return summary.memory


def formula(sizes: Sizes, plan: str, ranks: int) -> int:
    return sum(expected(expand(plan).state.placement, sizes, ranks=ranks, rank=0).values())


@pytest.mark.parametrize(("workload", "device"), [SMALL, LARGE])
def test_activations_become_smaller(workload: str, device: str, tmp_path: Path) -> None:
    """On a device in its whole peak, on the CPU in what is counted as activations."""
    sizes = sizes_of(workload, ENVIRONMENT)
    plans = sorted({*SMALLER, *SMALLER.values()})
    found = {plan: measured(workload, device, plan, tmp_path / plan) for plan in plans}
    for plan, memory in found.items():
        assert memory.where == ("device" if device == "cuda" else "process")
        assert memory.state <= 1.05 * formula(sizes, plan, ranks=1), plan
    for plan, larger in SMALLER.items():
        if device == "cuda":
            assert found[plan].total < found[larger].total
        else:
            assert found[plan].peaks["activations"] < found[larger].peaks["activations"]


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_state_leaves_the_device(tmp_path: Path) -> None:
    """tests/parallel/test_offload_ranks.py tries the same ways between two places in the memory of a CPU."""
    sizes = sizes_of("lm-1b", ENVIRONMENT)
    whole = measured("lm-1b", "cuda", "ddp", tmp_path / "ddp")
    assert whole.state <= 1.05 * formula(sizes, "ddp", ranks=1)
    for plan in OFFLOADED:
        memory = measured("lm-1b", "cuda", plan, tmp_path / plan)
        moved = sum(memory.on_host.values())
        assert moved >= 0.95 * sizes.parameters * sizes.itemsize * sizes.slots
        assert memory.total < whole.total - 0.8 * sizes.parameters * sizes.itemsize * sizes.slots

"""Several ranks, which exchange tensors by NCCL: the answers of one device, and ends that are explained.

Where there are fewer devices than ranks they share them, and NCCL takes each for a host of its own. The CPU
runs the same rows by Gloo.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from killed import Place, assert_close, assert_same
from packages import missing
from ronde.testing import forked
from ronde.testing.parity import assert_parity
from ronde.trace.explanation import read_explanation
from ronde.verify.runs import Job, run_on_ranks, spawn

from .where import CPU, Where, places

SCRIPTS = Path(__file__).parents[1] / "scripts"
DATA_PARALLEL = [("ddp", 2, path.stem) for path in sorted(SCRIPTS.glob("*.py")) if not missing(path)]
# With shared parameters, several optimizers, clipping, accumulation, state that is saved and loaded.
NAMES = ("tied", "gan", "clip_and_log", "gradient_accumulation", "resume", "transformer")
STATE = ("zero1", "zero2", "zero3", "central", "zero1,offload=optimizer", "zero3,offload=all")
COMPUTE = ("recompute=full", "zero3,recompute=selective")
CUT = [
    ("micro-batches=3", 2, "transformer"),
    ("tensor=2", 2, "transformer"),
    ("tensor=2", 2, "gpt"),
    ("pipeline=2,micro-batches=3", 2, "transformer"),
    ("pipeline=2,micro-batches=3", 2, "clip_and_log"),
    ("pipeline=2,micro-batches=4,schedule=1f1b", 2, "gpt"),
    ("context=2", 2, "transformer"),
    ("context=2", 2, "gpt"),
    ("data=2,expert=2", 2, "experts"),
    ("hybrid", 2, "sparse_hybrid"),
    # Replicas of something that is cut.
    ("data=2,tensor=2", 4, "transformer"),
    ("data=2,tensor=2,zero1", 4, "resume"),
    ("data=2,tensor=2,zero3", 4, "gpt"),
    ("data=2,pipeline=2,zero1,micro-batches=2", 4, "transformer"),
    ("data=2,context=2", 4, "gpt"),
    ("data=4,expert=2,zero2", 4, "experts"),
]
EXACT = [
    *DATA_PARALLEL,
    *((plan, 2, name) for plan in (*STATE, *COMPUTE) for name in NAMES),
    *CUT,
]
DAILY = [("zero3", 2, "tied"), ("data=2,tensor=2,zero1", 4, "resume")]
NARROW = [
    (plan, 2, name)
    for plan in ("precision=bf16", "precision=fp16", "zero2,precision=bf16")
    for name in ("classifier", "transformer")
]
COMPRESSORS = ("fp16", "bf16", "int8", "onebit", "twobit", "topk", "randomk", "powersgd")


def starter(where: Where, host: Any) -> Any:
    """New processes on a device, which forks of one that has imported torch cannot use."""
    return host.start if where is CPU else spawn


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("plan", "ranks", "name", "where"), places(EXACT, DAILY))
def test_an_exact_plan(plan: str, ranks: int, name: str, where: Where, tmp_path: Path, host: Any) -> None:
    assert_parity(
        SCRIPTS / f"{name}.py",
        ranks=ranks,
        place=tmp_path,
        devices=where.devices(ranks),
        plan=where.plan(plan),
        starter=starter(where, host),
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("plan", "ranks", "name", "where"), places(NARROW))
def test_a_precision(plan: str, ranks: int, name: str, where: Where, tmp_path: Path, host: Any) -> None:
    assert_parity(
        SCRIPTS / f"{name}.py",
        ranks=ranks,
        place=tmp_path,
        devices=where.devices(ranks),
        plan=where.plan(plan),
        double=False,
        starter=starter(where, host),
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("compressor", "where"), places([(name,) for name in COMPRESSORS], [("onebit",)]))
def test_a_compressor_sends_what_it_sends_in_shared_memory(
    compressor: str, where: Where, tmp_path: Path, host: Any
) -> None:
    """tests/sync/test_compression_ranks.py compares shared memory with the equations."""
    told: list[str] = []
    for turn, (devices, start) in enumerate([((), host.start), (where.devices(2), starter(where, host))]):
        job = Job(
            script="clip_and_log.py", directory=SCRIPTS, plan=f"compressor={compressor}", devices=devices
        )
        run = run_on_ranks(job, tmp_path / str(turn) / "ranks", ranks=2, starter=start)
        assert run.exit_code == 0, run.stderr
        told.append(run.stdout)
    assert told[0]
    assert_close(*told)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plan", "script", "where"),
    places([("ddp", "transformer"), ("zero3", "gradient_accumulation"), ("tensor=2", "transformer")]),
)
def test_a_killed_run_goes_on(plan: str, script: str, where: Where, tmp_path: Path) -> None:
    whole = Place(tmp_path / "whole", script, where.environment(2))
    cut = Place(tmp_path / "cut", script, where.environment(2))
    options = ("--plan", where.plan(plan))
    said = whole.finish(2, *options)
    cut.kill_when_saved(2, *options)
    assert cut.newest()
    assert_close(said, cut.finish(2, "--resume", *options))
    assert list(cut.files()) == list(whole.files())
    for name in whole.files():
        assert_same(whole.path / name, cut.path / name, exact=False)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "cause", "where"), places([("kill", "killed"), ("sleep", "sleeps")], [("kill", "killed")])
)
def test_an_end_is_explained(what: str, cause: str, where: Where, tmp_path: Path) -> None:
    timeout = "5" if what == "sleep" else "60"
    words = ["run", "--ranks", "2", "--timeout", timeout, "--run-dir", "run", "--plan", where.plan("ddp")]
    script = str(Path(__file__).with_name("stopping.py"))
    done = forked.run(
        [*words, script, what], directory=tmp_path, environment=where.environment(2), timeout=200
    )
    assert len(done.stdout.splitlines()) >= 5, done.stderr
    assert done.returncode == (128 + 9 if what == "kill" else 1), done.stderr
    found = read_explanation(tmp_path / "run")
    assert found is not None
    assert (found.cause, found.rank) == (cause, 1), done.stderr

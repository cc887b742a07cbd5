"""A model, or a sequence, of more than one rank's limit of memory trains where it lies in parts, not else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel import large_model, large_transformer, long_sequence, memory_limit

# By script the limit in bytes. Without what code and buffers take one device needs 1.6 times as many for a
# model in fp32 with Adam, and 3 times as many for the activations of sequences, whose model fits.
LIMITS = {
    "large_model.py": int(16 * large_model.PARAMETERS / 1.6),
    "large_transformer.py": int((16 * large_transformer.PARAMETERS + large_transformer.ACTIVATIONS) / 1.6),
    "long_sequence.py": int(16 * long_sequence.PARAMETERS + long_sequence.ACTIVATIONS / 3),
}
RANKS = {"long_sequence.py": 4}
# What docs/memory.md says of memory that is tight under these plans: blocks that are freed go back at once.
RETURNING = ("MALLOC_MMAP_THRESHOLD_", str(256 << 10))
PLANS = {
    "large_model.py": ("zero3",),
    "large_transformer.py": ("tensor=2", "pipeline=2,micro-batches=4"),
    "long_sequence.py": ("context=4,context-attention=ring",),
}


@pytest.fixture(params=LIMITS)
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param != "large_model.py":
        monkeypatch.setenv(*RETURNING)
    return Path(__file__).with_name(request.param)


@pytest.fixture(params=["control group", "RLIMIT_DATA"])
def given(script: Path, request: pytest.FixtureRequest) -> Iterator[memory_limit.Limits]:
    ranks, by_groups = RANKS.get(script.name, 2), request.param == "control group"
    with memory_limit.limits(ranks, LIMITS[script.name], by_groups=by_groups) as made:
        if made.kind != request.param:
            pytest.skip("needs the right to make a control group with a limit of memory")
        yield made


@pytest.mark.soak
def test_the_whole_is_too_much(script: Path, given: memory_limit.Limits, tmp_path: Path) -> None:
    run = memory_limit.run(script, plan="ddp", given=given, place=tmp_path)
    assert run.returncode != 0
    if given.groups:
        assert any(given.struck(rank) for rank in range(given.ranks))
        assert "killed by SIGKILL" in run.stderr
    else:
        assert "can't allocate memory" in run.stderr


@pytest.mark.soak
@pytest.mark.timeout(600)  # four ranks on two cores
def test_in_parts_it_trains_to_the_numbers_of_one_device(
    script: Path, given: memory_limit.Limits, tmp_path: Path
) -> None:
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=True)
    expected = [float(line) for line in alone.stdout.split()]
    assert len(set(expected)) == len(expected) >= 2
    for place, plan in enumerate(PLANS[script.name]):
        folder = tmp_path / str(place)
        folder.mkdir()
        run = memory_limit.run(script, plan=plan, given=given, place=folder)
        assert run.returncode == 0, (plan, run.stderr)
        assert not any(given.struck(rank) for rank in range(given.ranks)), plan
        assert [float(line) for line in run.stdout.split()] == pytest.approx(expected, rel=1e-5), plan

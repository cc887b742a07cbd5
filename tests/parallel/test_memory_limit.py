"""A model whose state is 1.6 times one rank's limit of memory trains where it lies in parts, not else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel import memory_limit
from parallel.large_model import PARAMETERS

SCRIPT = Path(__file__).with_name("large_model.py")
STATE = 16 * PARAMETERS
LIMIT = int(STATE / 1.6)


@pytest.fixture(params=["control group", "RLIMIT_DATA"])
def given(request: pytest.FixtureRequest) -> Iterator[memory_limit.Limits]:
    with memory_limit.limits(2, LIMIT, by_groups=request.param == "control group") as made:
        if made.kind != request.param:
            pytest.skip("needs the right to make a control group with a limit of memory")
        yield made


@pytest.mark.soak
def test_whole_state_is_too_much(given: memory_limit.Limits, tmp_path: Path) -> None:
    run = memory_limit.run(SCRIPT, plan="ddp", given=given, place=tmp_path)
    assert run.returncode != 0
    if given.groups:
        assert given.struck(0) or given.struck(1)
        assert "killed by SIGKILL" in run.stderr
    else:
        assert "can't allocate memory" in run.stderr


@pytest.mark.soak
def test_in_parts_it_trains_to_the_numbers_of_one_device(given: memory_limit.Limits, tmp_path: Path) -> None:
    run = memory_limit.run(SCRIPT, plan="zero3", given=given, place=tmp_path)
    assert run.returncode == 0, run.stderr
    assert not any(given.struck(rank) for rank in (0, 1))
    alone = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=600, check=True)
    expected = [float(line) for line in alone.stdout.split()]
    assert [float(line) for line in run.stdout.split()] == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) == len(expected) == 4

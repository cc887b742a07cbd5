"""A model, or a sequence, of more than one rank's limit of memory trains where it lies in parts, not else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel import large_model, memory_limit
from parallel.large_transformer import LARGE, LONG

_MODEL = 16 * large_model.PARAMETERS
_TRANSFORMER = 16 * LARGE.parameters + LARGE.activations


@dataclasses.dataclass(frozen=True)
class Case:
    """A script, and plans under which it trains where one device needs several times the limit.

    Attributes:
        nbytes: the limit. Without what code and buffers take one device needs 1.6 times as many for a model
            in fp32 with Adam (3.2 times under two axes), and 3 times as many for the activations of
            sequences, whose model fits.
    """

    script: str
    nbytes: float
    plans: tuple[str, ...]
    ranks: int = 2
    arguments: tuple[str, ...] = ()


CASES = [
    Case("large_model.py", _MODEL / 1.6, ("zero3",)),
    Case("large_transformer.py", _TRANSFORMER / 1.6, ("tensor=2", "pipeline=2,micro-batches=4")),
    Case("large_transformer.py", _TRANSFORMER / 3.2, ("tensor=2,pipeline=2,micro-batches=4",), 4),
    Case(
        "large_transformer.py",
        16 * LONG.parameters + LONG.activations / 3,
        ("context=4,context-attention=ring",),
        4,
        ("long",),
    ),
]
# As docs/reference/memory.md says of tight memory: blocks that are freed go back at once.
RETURNING = ("MALLOC_MMAP_THRESHOLD_", str(256 << 10))


@pytest.fixture(params=CASES, ids=lambda case: "-".join((case.script, str(case.ranks), *case.arguments)))
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    if request.param.script != "large_model.py":
        monkeypatch.setenv(*RETURNING)
    return request.param


@pytest.fixture
def script(case: Case) -> Path:
    return Path(__file__).with_name(case.script)


@pytest.fixture(params=["control group", "RLIMIT_DATA"])
def given(case: Case, request: pytest.FixtureRequest) -> Iterator[memory_limit.Limits]:
    by_groups = request.param == "control group"
    with memory_limit.limits(case.ranks, int(case.nbytes), by_groups=by_groups) as made:
        if made.kind != request.param:
            pytest.skip("needs the right to make a control group with a limit of memory")
        yield made


@pytest.mark.soak
def test_the_whole_is_too_much(case: Case, script: Path, given: memory_limit.Limits, tmp_path: Path) -> None:
    run = memory_limit.run(script, *case.arguments, plan="ddp", given=given, place=tmp_path)
    assert run.returncode != 0
    if given.groups:
        assert any(given.struck(rank) for rank in range(given.ranks))
        assert "killed by SIGKILL" in run.stderr
    else:
        assert "can't allocate memory" in run.stderr


@pytest.mark.soak
@pytest.mark.timeout(600)  # four ranks on two cores
def test_in_parts_it_trains_to_the_numbers_of_one_device(
    case: Case, script: Path, given: memory_limit.Limits, tmp_path: Path
) -> None:
    command = [sys.executable, script, *case.arguments]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    expected = [float(line) for line in alone.stdout.split()]
    assert len(set(expected)) == len(expected) >= 2
    for place, plan in enumerate(case.plans):
        folder = tmp_path / str(place)
        folder.mkdir()
        run = memory_limit.run(script, *case.arguments, plan=plan, given=given, place=folder)
        assert run.returncode == 0, (plan, run.stderr)
        assert not any(given.struck(rank) for rank in range(given.ranks)), plan
        assert [float(line) for line in run.stdout.split()] == pytest.approx(expected, rel=1e-5), plan

"""Twelve seeded faults are each caught, and named by the right clause; without a fault the law holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.testing.faults import FAULTS, Fault
from ronde.testing.warm import WarmHost
from ronde.verify.clauses.verdict import Status
from ronde.verify.proof import Proof, judge
from ronde.verify.runs import Job, Run, run_on_ranks, run_plain

JOB = Job(
    script="every_feature.py",
    steps=100,
    dtype="float64",
    directory=Path(__file__).parent,
    plan="ddp",
    threads=1,
)


@pytest.fixture(scope="module")
def plain(host: WarmHost, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = run_plain(JOB, tmp_path_factory.mktemp("plain") / "run", starter=host.start)
    assert run.exit_code == 0, run.stderr
    return run


def prove(host: WarmHost, plain: Run, place: Path, *extensions: str) -> Proof:
    run = run_on_ranks(JOB, place, ranks=2, extensions=extensions, starter=host.start)
    return judge(JOB, plain, run, ranks=2)


def test_without_a_fault_every_clause_holds(host: WarmHost, plain: Run, tmp_path: Path) -> None:
    proof = prove(host, plain, tmp_path / "run")
    assert [(each.clause, each.status, each.divergence) for each in proof.verdicts] == [
        (clause, Status.holds, "") for clause in ("L1", "L2", "L3", "L4", "L5", "L6")
    ]
    assert proof.steps == 8
    assert proof.holds


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_caught_by_the_right_clause(
    fault: Fault, host: WarmHost, plain: Run, tmp_path: Path
) -> None:
    proof = prove(host, plain, tmp_path / "run", fault.extension)
    assert not proof.failure
    assert not proof.holds
    verdicts = {each.clause: each for each in proof.verdicts}
    assert verdicts[fault.clause].status is Status.broken
    assert fault.mention in verdicts[fault.clause].divergence
    for clause in fault.holding:
        assert verdicts[clause].status is Status.holds, verdicts[clause].divergence


def test_there_are_twelve() -> None:
    assert len({fault.name for fault in FAULTS}) == 12

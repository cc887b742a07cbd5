"""Seeded faults are each caught, and named by the right clause; without a fault the law holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ronde.verify.clauses.verdict import Status
from ronde.verify.proof import Proof, judge
from ronde.verify.record import Twin
from ronde.verify.runs import FinishedRun, Job, run_on_ranks, run_plain
from support.faults import FAULTS, Fault
from support.small_faults import SMALL_FAULTS
from support.warm import WarmHost

LARGE = Job(script="every_feature.py", steps=100, directory=Path(__file__).parent)
SMALL = dataclasses.replace(LARGE, script="small_features.py")
# In single precision, where rounding is measured by twins of the plain run, which all faults share.
AS_IS = {job.script: dataclasses.replace(job, double=False) for job in (LARGE, SMALL)}
PRECISIONS = ("double", "as-is")

Prove = Callable[..., Proof]


@pytest.fixture(scope="module")
def prove(host: WarmHost, tmp_path_factory: pytest.TempPathFactory) -> Prove:
    """Proves a job with some faults; the runs of plain python are made once."""
    known: dict[tuple[Job, Twin], FinishedRun] = {}

    def plain(job: Job, twin: Twin = "") -> FinishedRun:
        if (job, twin) not in known:
            like = plain(job) if twin else None
            place = tmp_path_factory.mktemp("plain") / "run"
            known[job, twin] = run_plain(job, place, twin=twin, like=like, starter=host.start)
            assert known[job, twin].exit_code == 0, known[job, twin].stderr
        return known[job, twin]

    def proof(job: Job, *extensions: str) -> Proof:
        place = tmp_path_factory.mktemp("ranks") / "run"
        run = run_on_ranks(job, place, ranks=2, extensions=extensions, starter=host.start)
        return judge(job, plain(job), run, ranks=2, start=lambda twin: plain(job, twin))

    return proof


def job_of(script: Job, precision: str) -> Job:
    return script if precision == "double" else AS_IS[script.script]


@pytest.mark.parametrize(
    ("job", "steps", "precision"),
    [
        pytest.param(LARGE, 8, "as-is", id="large-as-is"),
        pytest.param(SMALL, 9, "double", id="small-double"),
        pytest.param(LARGE, 8, "double", id="large-double", marks=pytest.mark.soak),
        pytest.param(SMALL, 9, "as-is", id="small-as-is", marks=pytest.mark.soak),
    ],
)
def test_without_a_fault_every_clause_holds(job: Job, steps: int, precision: str, prove: Prove) -> None:
    proof = prove(job_of(job, precision))
    assert [(each.clause, each.status, each.divergence) for each in proof.verdicts] == [
        (clause, Status.holds, "") for clause in ("L1", "L2", "L3", "L4", "L5", "L6")
    ]
    assert proof.steps == steps
    assert proof.holds


def _every_third(faults: tuple[Fault, ...]) -> list[Any]:
    """Parameters of which every third is tried every day; `make soak` has all."""
    return [
        pytest.param(fault, id=fault.name, marks=pytest.mark.soak if place % 3 else ())
        for place, fault in enumerate(faults)
    ]


@pytest.mark.parametrize("fault", _every_third(FAULTS))
def test_fault_is_caught_by_the_right_clause(fault: Fault, prove: Prove) -> None:
    check(prove(LARGE, fault.extension), fault)


@pytest.mark.parametrize("fault", _every_third(SMALL_FAULTS))
def test_small_fault_is_caught_by_the_right_clause(fault: Fault, prove: Prove) -> None:
    check(prove(SMALL, fault.extension), fault)


# By the smallest of all; `make soak` has the rest.
_SAMPLE = {"epsilon_outside_the_root"}
_SINGLE = [
    *(pytest.param(LARGE, fault, id=fault.name, marks=pytest.mark.soak) for fault in FAULTS),
    *(
        pytest.param(SMALL, fault, id=fault.name, marks=() if fault.name in _SAMPLE else pytest.mark.soak)
        for fault in SMALL_FAULTS
    ),
]


@pytest.mark.parametrize(("job", "fault"), _SINGLE)
def test_fault_is_caught_in_single_precision(job: Job, fault: Fault, prove: Prove) -> None:
    if fault.name == "mean_instead_of_sum":
        # Clipping undoes it, but for 1e-6 of the norm, which is read.
        fault = dataclasses.replace(fault, clause="L3", mention="clip_grad_norm_ (value 1)")
    check(prove(job_of(job, "as-is"), fault.extension), fault)


def check(proof: Proof, fault: Fault) -> None:
    assert not proof.failure
    assert not proof.holds
    verdicts = {each.clause: each for each in proof.verdicts}
    assert verdicts[fault.clause].status is Status.broken, verdicts
    assert fault.mention in verdicts[fault.clause].divergence
    for clause in fault.holding:
        assert verdicts[clause].status is Status.holds, verdicts[clause].divergence


@pytest.mark.parametrize("faults", [FAULTS, SMALL_FAULTS])
def test_there_are_twelve(faults: tuple[Fault, ...]) -> None:
    assert len({fault.name for fault in faults}) == 12

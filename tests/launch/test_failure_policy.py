"""What a run does about a failure."""

from __future__ import annotations

from typing import Any

import pytest

from ronde.launch.failure import RankDeath, RankFailure
from ronde.launch.failure_policy import Decision, FailurePolicy
from ronde.launch.job import Outcome
from ronde.launch.run_spec import RunSpec

ASYNC = "state=server,update=async,optimizer-on=server"


def death(rank: int = 1, code: int = -9) -> RankDeath:
    return RankDeath(rank=rank, time=0.0, code=code)


def failed(kind: Any = "signal", code: int = 137) -> Outcome:
    return Outcome(exit_code=code, failure=RankFailure(rank=1, time=0.0, kind=kind, exit_code=code))


@pytest.mark.parametrize(
    ("plan", "checkpoint", "dead", "decision"),
    [
        (ASYNC, "", death(), Decision.GO_ON),
        (ASYNC, "", death(rank=0), Decision.RAISE),  # the script's own, and its output
        (ASYNC, "", death(code=1), Decision.RAISE),  # it would happen to the others, too
        (ASYNC, "saved", death(), Decision.RAISE),  # a checkpoint is of all ranks
        ("ddp", "", death(), Decision.RAISE),
    ],
)
def test_a_dead_rank(plan: str, checkpoint: str, dead: RankDeath, decision: Decision) -> None:
    policy = FailurePolicy.of(RunSpec(script="x.py", plan=plan, checkpoint=checkpoint), restarts=3)
    assert policy.on_death(dead) is decision


@pytest.mark.parametrize(
    ("outcome", "failures", "changed", "decision"),
    [
        (Outcome(exit_code=0), 0, False, Decision.RAISE),
        (Outcome(exit_code=0), 0, True, Decision.RAISE),  # the script's end, whoever has come meanwhile
        (Outcome(exit_code=143), 0, False, Decision.RAISE),  # the user's wish
        (Outcome(exit_code=143), 2, True, Decision.RESIZE),
        (failed(), 0, False, Decision.RETRY),
        (failed(), 1, False, Decision.RETRY),
        (failed(), 2, False, Decision.RAISE),
        (failed(), 0, True, Decision.RETRY),  # a host that is lost is a failure
        (failed("diverged", 1), 0, False, Decision.RAISE),
        (failed("exit", 2), 0, False, Decision.RAISE),  # a mistake on the script's command line
        (None, 1, False, Decision.RETRY),
        (None, 2, False, Decision.RAISE),
    ],
)
def test_the_end_of_all_ranks(
    outcome: Outcome | None, failures: int, changed: bool, decision: Decision
) -> None:
    assert FailurePolicy(restarts=2).on_end(outcome, failures=failures, hosts_changed=changed) is decision

"""Decide about failures, from the settings of a run and from its state."""

from __future__ import annotations

import dataclasses
import enum
from typing import final

from ronde.launch.failure import RankDeath
from ronde.launch.job import Outcome
from ronde.launch.run_spec import RunSpec
from ronde.plan import Plan

__all__ = ["Decision", "FailurePolicy"]

_USAGE = 2


class Decision(enum.Enum):
    """Answer to a failure."""

    GO_ON = enum.auto()  # the other ranks train on
    RETRY = enum.auto()  # the ranks are started again, from the newest checkpoint
    RESIZE = enum.auto()  # the same, with as many as the hosts have that are there now
    RAISE = enum.auto()  # the run ends, and the user is told how


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FailurePolicy:
    """Policy about failures: how many a run outlives, and of which kind.

    Attributes:
        restarts: number of failures after which the ranks are started again.
        tolerates_loss: whether ranks train on without another; rank 0 is always needed.
    """

    restarts: int = 0
    tolerates_loss: bool = False

    @classmethod
    def of(cls, run: RunSpec, restarts: int = 0) -> FailurePolicy:
        """Make the policy of a run. Checkpoints are of all ranks, so one that is saved needs all."""
        return cls(restarts=restarts, tolerates_loss=not run.checkpoint and Plan.parse(run.plan).is_local)

    def on_death(self, death: RankDeath) -> Decision:
        """Decide about a rank process that has ended while nothing else had failed: GO_ON or RAISE."""
        is_spared = self.tolerates_loss and death.code < 0 and death.rank != 0
        return Decision.GO_ON if is_spared else Decision.RAISE

    def on_end(self, outcome: Outcome | None, *, failures: int, hosts_changed: bool) -> Decision:
        """Decide about a run of which all ranks are gone: RETRY, RESIZE or RAISE.

        Args:
            outcome: the end of the run; None: a host that had answered could not take part.
            failures: number of failures that the run has outlived.
            hosts_changed: whether the ranks were asked to end since hosts have come or gone.
        """
        if outcome is not None:
            failure = outcome.failure
            if failure is None:
                return Decision.RESIZE if hosts_changed and outcome.exit_code else Decision.RAISE
            if failure.kind == "diverged" or failure.exit_code == _USAGE:  # it would happen again
                return Decision.RAISE
        return Decision.RETRY if failures < self.restarts else Decision.RAISE

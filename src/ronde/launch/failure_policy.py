"""Decisions about failures, from the settings and the state of a run."""

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
    """Decision after a failure."""

    GO_ON = enum.auto()  # the other ranks continue
    RETRY = enum.auto()  # the ranks are started again, from the newest checkpoint
    RESIZE = enum.auto()  # the same, with as many ranks as the present hosts have
    RAISE = enum.auto()  # the run ends with a report


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FailurePolicy:
    """Policy about failures: how many, and which, a run survives.

    Attributes:
        restarts: number of failures after which the ranks are started again.
        tolerates_loss: whether ranks continue without a lost one; rank 0 is always needed.
    """

    restarts: int = 0
    tolerates_loss: bool = False

    @classmethod
    def of(cls, run: RunSpec, restarts: int = 0) -> FailurePolicy:
        """Make the policy of a run.

        A checkpoint has the state of all ranks, so a run with checkpoints needs all.
        """
        return cls(restarts=restarts, tolerates_loss=not run.checkpoint and Plan.parse(run.plan).is_local)

    def on_death(self, death: RankDeath) -> Decision:
        """Decide about a dead rank when nothing else has failed: GO_ON or RAISE."""
        is_spared = self.tolerates_loss and death.code < 0 and death.rank != 0
        return Decision.GO_ON if is_spared else Decision.RAISE

    def on_end(self, outcome: Outcome | None, *, failures: int, hosts_changed: bool) -> Decision:
        """Decide about a run after all its ranks ended: RETRY, RESIZE or RAISE.

        Args:
            outcome: the end of the run; None: a host that had answered could not take part.
            failures: number of failures that the run has survived.
            hosts_changed: whether the ranks were asked to end since hosts have come or gone.
        """
        if outcome is not None:
            failure = outcome.failure
            if failure is None:
                return Decision.RESIZE if hosts_changed and outcome.exit_code else Decision.RAISE
            if failure.kind == "diverged" or failure.exit_code == _USAGE:  # a restart would fail again
                return Decision.RAISE
        return Decision.RETRY if failures < self.restarts else Decision.RAISE

"""Events of a node, for the controller of the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ronde.launch.failure import AbortKind, ErrorFile, RankDeath
from ronde.trace.evidence import Evidence
from ronde.trace.lockstep_board import BoardPosition

__all__ = ["NodeEnd", "NodeEvents"]


class NodeEnd(NamedTuple):
    """Final report of a node, after all its ranks have ended.

    Attributes:
        evidence: evidence of a failure, updated since; None without a failure.
        standings: last known places of the ranks.
        left: processes that the script left running, and that were ended.
    """

    evidence: Evidence | None
    standings: Sequence[BoardPosition]
    left: Sequence[str]


class NodeEvents(ABC):
    """Listener to one node's events.

    A method returns soon, because ranks are watched meanwhile.
    """

    @abstractmethod
    def died(self, death: RankDeath) -> None:
        """Record that a rank process has ended by itself."""

    @abstractmethod
    def erred(self, error: ErrorFile) -> None:
        """Record the error file that a rank has written."""

    @abstractmethod
    def froze(self, evidence: Evidence) -> None:
        """Take the evidence of a first failure, from before ranks are ended."""

    @abstractmethod
    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        """React to ranks that wait for a rank that does not arrive.

        Args:
            is_over: whether they have waited for the time of `--timeout`, which ends the run.
        """

    @abstractmethod
    def looked(self, evidence: Evidence) -> None:
        """Receive the evidence of the ranks, after a request for it."""

    @abstractmethod
    def aborted(self, kind: AbortKind, said: str) -> None:
        """End the run for this reason, though no rank has failed."""

    @abstractmethod
    def noticed(self, words: str) -> None:
        """Tell the user of something that is not a failure."""

    @abstractmethod
    def ended(self) -> None:
        """Record that all ranks ended well; servers still wait for `Node.release`."""

    @abstractmethod
    def concluded(self, end: NodeEnd) -> None:
        """Record that all ranks and servers are gone, with the final report."""

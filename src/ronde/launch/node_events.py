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
    """Last word about a node of which all ranks are gone.

    Attributes:
        evidence: evidence of a failure, with all that has become known since; None without one.
        standings: places where the ranks stood last.
        left: processes that the script has left, and that were ended.
    """

    evidence: Evidence | None
    standings: Sequence[BoardPosition]
    left: Sequence[str]


class NodeEvents(ABC):
    """Listener to one node. A method returns soon, for ranks are watched meanwhile."""

    @abstractmethod
    def died(self, death: RankDeath) -> None:
        """A rank process has ended by itself. The listener keeps account of it."""

    @abstractmethod
    def erred(self, error: ErrorFile) -> None:
        """A rank has written why it fails. The listener keeps account of it."""

    @abstractmethod
    def froze(self, evidence: Evidence) -> None:
        """A rank has failed, here or elsewhere. The evidence is of before any is ended."""

    @abstractmethod
    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        """Ranks wait for one that does not come.

        Args:
            is_over: whether they have done so for as long as `--timeout` lets them, which ends the run.
        """

    @abstractmethod
    def looked(self, evidence: Evidence) -> None:
        """The ranks have been looked at, as it was asked for."""

    @abstractmethod
    def aborted(self, kind: AbortKind, said: str) -> None:
        """The run is to be ended, though no rank has failed."""

    @abstractmethod
    def noticed(self, words: str) -> None:
        """The user should know of this, though nothing has failed."""

    @abstractmethod
    def ended(self) -> None:
        """All ranks of the node have ended well; its servers wait for `Node.release`."""

    @abstractmethod
    def concluded(self, end: NodeEnd) -> None:
        """All ranks and servers of the node are gone: the last word of it."""

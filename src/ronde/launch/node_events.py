"""What happens on a node of a run, for whoever controls the run: in this process, or behind a pipe."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ronde.launch.failure import ErrorFile, RankDeath
from ronde.trace.evidence import Evidence

__all__ = ["NodeEvents"]


class NodeEvents(ABC):
    """Hears of what happens on one node, at once. A method returns soon, for ranks are watched meanwhile."""

    @abstractmethod
    def died(self, death: RankDeath) -> None:
        """A rank process has ended, and nobody here has ended it."""

    @abstractmethod
    def erred(self, error: ErrorFile) -> None:
        """A rank has written why it fails."""

    @abstractmethod
    def froze(self, evidence: Evidence) -> None:
        """A rank has failed, here or elsewhere: all that was known of this node's before any is ended."""

    @abstractmethod
    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        """Ranks wait for one that does not come.

        Args:
            is_over: they have done so for as long as `--timeout` lets them, and the run is to be ended.
        """

    @abstractmethod
    def lost_server(self, said: str) -> None:
        """A parameter server cannot be kept alive, and the run is to be ended."""

    @abstractmethod
    def ended(self, *, has_servers: bool) -> None:
        """All ranks of the node have ended well; returns when its servers may end, too."""

    @abstractmethod
    def noticed(self, words: str) -> None:
        """The user should know of something that is no failure."""

"""A node of a run, as the controller of the run sees it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping

from ronde.launch.failure import RankExits
from ronde.launch.node_events import NodeEvents
from ronde.trace.evidence import SilentHost
from ronde.trace.launch_record import LaunchedNode

__all__ = ["Node", "NodeOfRun"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeOfRun:
    """A node's ranks among all of the run.

    Attributes:
        name: name of its host, "" for the only one.
        first_rank, ranks: its ranks among all.
        address: address by which others reach it; "" for the only one.
    """

    name: str
    first_rank: int
    ranks: int
    address: str = ""

    def __contains__(self, rank: int) -> bool:
        return self.first_rank <= rank < self.first_rank + self.ranks

    def silent(self, seconds: float) -> SilentHost:
        """Describe it as evidence to which it has given nothing for so long."""
        ranks = tuple(range(self.first_rank, self.first_rank + self.ranks))
        return SilentHost(name=self.name, address=self.address, ranks=ranks, seconds=round(seconds, 1))


class Node(ABC):
    """Ranks of one host that have been started. No method waits for long.

    Attributes:
        share: its ranks among all.
        waiting: collectives for which ranks wait, where nobody else can see that from here.
    """

    share: NodeOfRun
    waiting: Mapping[int, str]

    @property
    @abstractmethod
    def record(self) -> LaunchedNode | None:
        """The node as other tools know it; None before its ranks are known."""

    @abstractmethod
    def begin(self, ends: RankExits, events: NodeEvents) -> None:
        """Watch the ranks from here on, and tell the events.

        Args:
            ends: account of ends, which the listener keeps.
        """

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Tell whether all ranks are gone, or will not be heard of any more."""

    @property
    @abstractmethod
    def silence(self) -> float:
        """Seconds without a sign of it; 0 where it is in this process."""

    @abstractmethod
    def tick(self) -> float:
        """Seconds for which signals may be waited for before the next step."""

    @abstractmethod
    def poll(self) -> None:
        """Note which ranks have ended; `step` acts on it.

        Signals that the user sent before are then known: the kernel delivers Ctrl-C to all of the group
        before the end of one is seen.
        """

    @abstractmethod
    def step(self) -> None:
        """Act as is due, and tell all events since the last step."""

    @abstractmethod
    def look(self, reason: str) -> None:
        """Look at the ranks; the answer comes as an event."""

    @abstractmethod
    def end(self) -> None:
        """End the ranks, since one has failed, on this node or on another."""

    @abstractmethod
    def release(self) -> None:
        """Let parameter servers end, since the ranks of all nodes have."""

    @abstractmethod
    def signal(self, number: int, *, by_key: bool) -> None:
        """Give the ranks a signal.

        Args:
            by_key: whether the terminal has given it to its foreground group already.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the ranks at once, as the user has asked. Nothing is told of their ends."""

    @abstractmethod
    def stop(self, *, by_key: bool) -> None:
        """Stop the ranks, as Ctrl-Z does, until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Let the ranks go on."""

    @abstractmethod
    def reap(self, pid: int) -> None:
        """Take note that a child of this process may have ended."""

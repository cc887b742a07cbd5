"""A node of a run, as the controller of the run sees it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from ronde.launch.failure import RankExits
from ronde.launch.node_events import NodeEvents
from ronde.trace.evidence import SilentHost
from ronde.trace.launch_record import LaunchedNode

__all__ = ["Node", "NodeOfRun"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeOfRun:
    """A node's ranks, and their place in the run.

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
        """Return evidence that the node has been silent for these seconds."""
        ranks = tuple(range(self.first_rank, self.first_rank + self.ranks))
        return SilentHost(name=self.name, address=self.address, ranks=ranks, seconds=round(seconds, 1))


class Node(ABC):
    """Started ranks of one host.

    No method waits for long.

    Attributes:
        share: its ranks among all.
        is_over: whether all ranks are gone, or will not be heard of again.
        waiting: collectives that ranks wait for, if only the node's agent can see them.
    """

    share: NodeOfRun
    is_over = False
    waiting: Mapping[int, str] = MappingProxyType({})

    @property
    @abstractmethod
    def record(self) -> LaunchedNode | None:
        """The record of the node for other tools; None before its ranks are known."""

    @abstractmethod
    def begin(self, ends: RankExits, events: NodeEvents) -> None:
        """Watch the ranks from now on, and report events.

        Args:
            ends: record of ends, which the listener keeps.
        """

    @property
    def silence(self) -> float:
        """Seconds since the node's last message; 0 for a node in this process."""
        return 0.0

    @abstractmethod
    def tick(self) -> float:
        """Seconds that the caller may wait for signals before the next step."""

    @abstractmethod
    def poll(self) -> None:
        """Look for ended ranks, on which `step` acts.

        Earlier signals of the user are known by then: the kernel delivers Ctrl-C to the whole group before
        the end of any member is seen.
        """

    @abstractmethod
    def step(self) -> None:
        """Act on everything that is due, and report all events since the last step."""

    @abstractmethod
    def look(self, reason: str) -> None:
        """Ask for evidence of the ranks; the answer comes as an event."""

    @abstractmethod
    def end(self) -> None:
        """End the ranks, because a rank has failed, here or elsewhere."""

    @abstractmethod
    def release(self) -> None:
        """Let parameter servers end, because the ranks of all nodes have."""

    @abstractmethod
    def signal(self, number: int, *, by_key: bool) -> None:
        """Send a signal to the ranks.

        Args:
            by_key: whether the terminal has sent it to its foreground group already.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the ranks at once for the user. Their ends are not reported."""

    @abstractmethod
    def stop(self, *, by_key: bool) -> None:
        """Stop the ranks, as Ctrl-Z does, until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Continue the stopped ranks."""

    @abstractmethod
    def reap(self, pid: int) -> None:
        """Handle the possible end of a child of this process."""

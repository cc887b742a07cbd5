"""Query of all nodes about their ranks, and the received answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from ronde.trace.evidence import Evidence

__all__ = ["NodeQuery"]

# A node looks at its ranks for less than a second; one that answers later is left out.
_PATIENCE_S = 3.0


class NodeQuery:
    """One query.

    Args:
        told: callback for the evidence of each node, by its number; called when all have answered.
        known: answers that are known already.
    """

    def __init__(
        self, told: Callable[[Mapping[int, Evidence]], object], known: Mapping[int, Evidence]
    ) -> None:
        self._told = told
        self._parts = dict(known)
        self._until = time.monotonic() + _PATIENCE_S

    def take(self, node: int, evidence: Evidence) -> None:
        """Record a node's answer."""
        self._parts[node] = evidence

    def is_complete(self, alive: Collection[int]) -> bool:
        """Return whether every live node has answered, or the time is over."""
        return self._parts.keys() >= set(alive) or time.monotonic() > self._until

    def conclude(self) -> None:
        """Pass the answers to the callback."""
        if self._parts:
            self._told(self._parts)

"""A question to all nodes about their ranks, and the answers that have come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from ronde.trace.evidence import Evidence

__all__ = ["NodeQuery"]

# A node looks at its ranks for less than a second; one that answers later is left out.
_PATIENCE_S = 3.0


class NodeQuery:
    """One look.

    Args:
        told: callback for the evidence of each node, by its number, when all have answered.
        known: answers that are there already.
    """

    def __init__(
        self, told: Callable[[Mapping[int, Evidence]], object], known: Mapping[int, Evidence]
    ) -> None:
        self._told = told
        self._parts = dict(known)
        self._until = time.monotonic() + _PATIENCE_S

    def take(self, node: int, evidence: Evidence) -> None:
        """A node has answered."""
        self._parts[node] = evidence

    def is_complete(self, alive: Collection[int]) -> bool:
        """Tell whether every live node has answered, or the time is over."""
        return self._parts.keys() >= set(alive) or time.monotonic() > self._until

    def conclude(self) -> None:
        """Give the answers to whoever has asked."""
        if self._parts:
            self._told(self._parts)

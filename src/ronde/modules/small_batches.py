"""Calls in training on fewer rows than there are ranks, which every rank computes whole."""

from __future__ import annotations

__all__ = ["SmallBatches"]


class SmallBatches:
    """Counts the calls of modules in training that no other module's call is around; one per session."""

    def __init__(self) -> None:
        self._calls = self._small = 0

    def count(self, *, small: bool) -> None:
        self._calls += 1
        self._small += small

    def sentence(self, ranks: int) -> str:
        """What the user is told at the end where most of them were so; else empty."""
        if ranks == 1 or 2 * self._small <= self._calls:
            return ""
        return (
            f"{self._small} of {self._calls} calls of modules in training were on fewer rows than there are "
            f"ranks ({ranks}): every rank computed them whole, right but no faster; larger batches can be cut"
        )

"""What an observed call learnt, with which the next one of the same module begins: little is tried again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ronde.rowwise.rows import Branch

__all__ = ["Forms", "Lies"]

Lies = tuple[int, tuple[int, int]]
"""Where rows lie in a result: the axis, and how often they are repeated there; see `Order.repeats`."""


@dataclasses.dataclass(slots=True)
class Forms:
    """Forms of operations, and what comes of each.

    Attributes:
        found: for each form, where rows lie in each result, or None where they meet.
        branches: comparisons with the number of rows that the module made.
    """

    found: dict[Any, Sequence[Lies | None]] = dataclasses.field(default_factory=dict)
    branches: list[Branch] = dataclasses.field(default_factory=list)

    def fits(self, whole: int, mine: int) -> bool:
        """Whether so many rows of the batch, and here, decide nothing that was not observed."""
        return all(branch.at(whole) == branch.at(mine) == branch.was for branch in self.branches)

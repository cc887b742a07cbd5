"""Start of a call through a pipeline on one rank. Look-ups are kept for a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from ronde.parallel.context.sequences import Sequences

__all__ = ["CallStart", "LookUps"]


class LookUps:
    """Rows that tables have returned in one call.

    A look-up is a collective of the ranks with other rows of the batch. A call may restart on some of them
    only, so it does not repeat look-ups.
    """

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []
        self._next = 0

    def begin(self) -> None:
        """Start a call, or restart it."""
        self._next = 0

    def rows(self, look_up: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the rows of the next look-up."""
        if self._next == len(self._rows):
            self._rows.append(look_up())
        self._next += 1
        return self._rows[self._next - 1]


@dataclasses.dataclass(frozen=True, slots=True)
class CallStart:
    """Part of a call that its micro-batches share on a rank.

    Attributes:
        token: tensor that leads to the start of the call in backward; None without a graph.
        tied: replacements of parameters that all ranks have, by id.
        look_ups: rows that tables have returned.
        sequences: executor that cuts sequences inside of the call; None where they are whole.
    """

    token: torch.Tensor | None
    tied: dict[int, torch.Tensor]
    look_ups: LookUps
    sequences: Sequences | None = None

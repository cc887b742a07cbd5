"""The start of a call through a pipeline on a rank; look-ups are kept when it begins anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from ronde.parallel.sequences import Sequences

__all__ = ["CallStart", "LookUps"]


class LookUps:
    """The rows that tables have given in one call.

    All ranks with other rows of the batch meet in a look-up. A call may begin anew on some of them only, so
    it does not ask again.
    """

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []
        self._next = 0

    def begin(self) -> None:
        """Begin a call, or begin it anew."""
        self._next = 0

    def rows(self, look_up: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The rows of the next look-up."""
        if self._next == len(self._rows):
            self._rows.append(look_up())
        self._next += 1
        return self._rows[self._next - 1]


@dataclasses.dataclass(frozen=True, slots=True)
class CallStart:
    """The part of a call that its micro-batches share on a rank.

    Attributes:
        token: leads to the start of the call in backward; None without a graph.
        tied: by id of a parameter that all ranks have its stand-in.
        look_ups: the rows that tables have given.
        sequences: cuts sequences inside of the call; None where they are whole.
    """

    token: torch.Tensor | None
    tied: dict[int, torch.Tensor]
    look_ups: LookUps
    sequences: Sequences | None = None

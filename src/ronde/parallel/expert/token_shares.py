"""Division of tokens among ranks that have the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from ronde.comm.process_group import Comm
from ronde.tensor.context import Context
from ronde.tensor.edges import Gather, Slice
from ronde.tensor.global_tensor import materialize
from ronde.tensor.layout import Layout

__all__ = ["Among", "TokenShare", "TokenShares", "nothing"]


@dataclasses.dataclass(frozen=True, slots=True)
class TokenShare:
    """Tokens of one call that this rank takes to experts.

    Attributes:
        counts: number of its tokens for each expert.
    """

    counts: list[int]
    _context: Context | None
    _layout: Layout

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """Take this rank's part of rows in the order of their experts. A collective in backward."""
        return rows if self._context is None else Slice.apply(rows, self._context, self._layout)

    def whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather the rows of all parts. A collective."""
        return rows if self._context is None else Gather.apply(rows, self._context, self._layout)


@dataclasses.dataclass(frozen=True, slots=True)
class TokenShares:
    """Divides tokens among the ranks that have the same ones.

    Args:
        context: context of these ranks; None where each rank has tokens of its own.
    """

    context: Context | None = None

    def of(self, counts: Sequence[int]) -> TokenShare:
        """Divide tokens evenly, in the order of experts.

        Args:
            counts: number of tokens for each expert.
        """
        context = self.context
        ends = list(accumulate(counts))
        total = ends[-1]
        if context is None:
            return TokenShare(list(counts), None, Layout(0, total, 1))
        layout = context.layout(0, total)
        begin, stop = layout.bounds(context.rank)
        starts = [end - count for end, count in zip(ends, counts, strict=True)]
        own = [max(0, min(end, stop) - max(start, begin)) for start, end in zip(starts, ends, strict=True)]
        return TokenShare(own, context, layout)

    def plain(self, value: torch.Tensor) -> torch.Tensor:
        """Return the whole value, gathered if it is cut over the ranks of `context`."""
        return value if self.context is None else materialize(value)


def nothing() -> None:
    """Return at once: no other rank has the same experts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Among:
    """Ranks that call a mixture.

    Attributes:
        comm: ranks over which experts are spread.
        everybody: ranks that succeed or fail together; `comm` by default.
        shares: ranks that have the same tokens.
        gather: function that gathers the experts of this rank; every rank calls it, with tokens or without,
            and again before backward reaches them.
        passed: callback on every rank when backward has passed them.
    """

    comm: Comm
    everybody: Comm | None = None
    shares: TokenShares = TokenShares()
    gather: Callable[[], object] = nothing
    passed: Callable[[], object] = nothing

"""Where the batch lies in a leaf of a module's output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ronde.tensor.layout import Layout

__all__ = ["OutputAxis"]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputAxis:
    """Where the batch lies in one leaf of the output.

    Attributes:
        dim: the dimension, None for what does not depend on the batch.
        outer_first: other dimensions flattened into `dim` lie before the batch rather than behind it.
        dims: how many dimensions the tensor has, None for a leaf that is no tensor.
        order: its dimensions from the slowest to the fastest in memory, where it has several rows.
    """

    dim: int | None
    outer_first: bool = False
    dims: int | None = None
    order: tuple[int, ...] = ()

    def layout(self, shape: Sequence[int], cut: Layout, rows: int) -> Layout:
        """How a leaf is cut where the batch is cut so; of this shape where `rows` rows are at hand."""
        assert self.dim is not None
        others = shape[self.dim] // rows
        outer, inner = (others, 1) if self.outer_first else (1, others)
        return dataclasses.replace(cut, dim=self.dim, outer=outer, inner=inner)

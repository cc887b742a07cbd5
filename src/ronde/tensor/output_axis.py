"""Position of the batch in a leaf of a module's output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ronde.tensor.layout import Layout

__all__ = ["OutputAxis"]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputAxis:
    """Position of the batch in one leaf of the output.

    Attributes:
        dim: the batch dimension, None for a leaf that does not depend on the batch.
        outer_first: whether other dimensions flattened into `dim` lie before the batch rather than after it.
        dims: number of dimensions of the tensor, None for a leaf that is not a tensor.
        order: dimensions from the slowest to the fastest in memory, where the leaf has several rows.
    """

    dim: int | None
    outer_first: bool = False
    dims: int | None = None
    order: tuple[int, ...] = ()

    def layout(self, shape: Sequence[int], cut: Layout, rows: int) -> Layout:
        """Return the layout of this leaf for a given cut of the batch.

        Args:
            shape: shape of the leaf with `rows` rows of the batch.
            cut: cut of the batch over ranks.
            rows: rows of the batch in `shape`.
        """
        assert self.dim is not None
        others = shape[self.dim] // rows
        outer, inner = (others, 1) if self.outer_first else (1, others)
        return dataclasses.replace(cut, dim=self.dim, outer=outer, inner=inner)

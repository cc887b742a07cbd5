"""Where the batch lies in a leaf of a module's output."""

from __future__ import annotations

import dataclasses

import torch

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

    def layout(self, value: torch.Tensor, cut: Layout) -> Layout:
        """How the rows of a leaf are cut where those of the batch are cut so."""
        assert self.dim is not None
        others = value.shape[self.dim] // cut.rows
        outer, inner = (others, 1) if self.outer_first else (1, others)
        return dataclasses.replace(cut, dim=self.dim, outer=outer, inner=inner)

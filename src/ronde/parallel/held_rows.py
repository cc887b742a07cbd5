"""What a rank holds of weights whose rows are spread, and of their gradients; all else it holds whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ronde.parallel.division import Division
from ronde.parallel.held_parts import HeldParts
from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.sync.gradient_parts import Ranges
from ronde.sync.home import OnDevice
from ronde.sync.row_parts import RowParts, cut_rows

__all__ = ["ROW_OPTIMIZERS", "HeldRows", "updates_rows"]

ROW_OPTIMIZERS: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.SparseAdam,
    torch.optim.Adagrad,
)
"""torch's own that take sparse gradients, and update each row by itself."""


def updates_rows(optimizer: Any) -> bool:
    """Whether its step is known to go row by row, with a state that is dense.

    With momentum SGD keeps a sparse one, of all rows that ever had a gradient.
    """
    return (
        type(optimizer) in ROW_OPTIMIZERS
        and not optimizer.defaults.get("differentiable", False)
        and all(group.get("momentum", 0) == 0 for group in optimizer.param_groups)
    )


class HeldRows(HeldParts):
    """What the update of rows goes by: matrices [own rows, dim], as sparse gradients need them."""

    def __init__(self, division: Division, gradients: RowParts, parameters: ShardedParameters) -> None:
        super().__init__(division, OnDevice(), gradients, parameters)

    def divide(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        return [self.division.ranges(each) if self.part(each) is not None else None for each in tensors]

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        own = super().part(tensor)
        return None if own is None else own.view(-1, tensor.shape[1])

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether it is in parts still; a gradient can be cut into rows whatever its layout."""
        return self.part(tensor) is not None

    def own_gradient(self, tensor: torch.Tensor, own: tuple[int, int]) -> torch.Tensor:
        part = None if self.gradients is None else self.gradients.part(tensor)
        if part is not None:
            return part
        gradient = tensor.grad
        assert gradient is not None
        first, last = (place // tensor.shape[1] for place in own)
        return cut_rows(gradient, first, last)

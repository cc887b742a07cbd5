"""What joins the rows of a batch on purpose: a rehearsal lets it pass row by row, and is told of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary

__all__ = ["Joints", "row_by_row"]


class Joints(TorchFunctionMode):
    """Watches what runs inside.

    Attributes:
        met: something that joins rows was among it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.met = self.met or func is row_by_row
        return func(*args, **(kwargs or {}))


def row_by_row(input: torch.Tensor) -> torch.Tensor:
    """What a rehearsal sees of a batch norm: statistics of the batch are known to be global."""
    if has_torch_function_unary(input):
        return handle_torch_function(row_by_row, (input,), input)
    return input.clone()  # what follows may work in place, and the result is never the input itself

"""What joins the rows of a batch on purpose: a rehearsal lets it pass row by row, and is told of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary

__all__ = ["Joint", "Joints", "across_rows", "row_by_row", "without_batch"]


@dataclasses.dataclass(frozen=True, slots=True)
class Joint:
    """One call that joins rows.

    Attributes:
        shape: of what it is given.
        keeps: it keeps statistics of that.
    """

    shape: tuple[int, ...]
    keeps: bool


class Joints(TorchFunctionMode):
    """Watches what runs inside.

    Attributes:
        seen: what joined rows among it, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Joint] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is row_by_row:
            self.seen.append(Joint(tuple(args[0].shape), keeps=args[1]))
        return func(*args, **(kwargs or {}))


def row_by_row(input: torch.Tensor, keeps: bool) -> torch.Tensor:
    """What a rehearsal sees of a batch norm: statistics of the batch are known to be global."""
    if has_torch_function_unary(input):
        return handle_torch_function(row_by_row, (input,), input, keeps)
    return input.clone()  # what follows may work in place, and the result is never the input itself


def without_batch(whole: Sequence[Joint], part: Sequence[Joint]) -> list[Joint]:
    """Those of a run on all rows that are given no rows, but a parameter, say: as large as in a part."""
    if len(whole) != len(part):
        return []
    return [joint for joint, other in zip(whole, part, strict=True) if joint.shape == other.shape]


def across_rows(whole: Sequence[Joint], part: Sequence[Joint], rows: int, part_rows: int) -> bool:
    """Whether all that are given rows of the batch are given all of them, and not as channels."""
    return len(whole) == len(part) and all(
        joint.shape == other.shape
        or (
            joint.shape[1] == other.shape[1]
            and math.prod(joint.shape) * part_rows == math.prod(other.shape) * rows
        )
        for joint, other in zip(whole, part, strict=True)
    )

"""Placeholders for tensors that another rank has: a shape without elements.

Every rank executes the code of a model between its stages. The output of a stage on another rank is a
`FakeTensor` here, and so is everything computed of it; values computed of tensors that every rank has are
real. A received tensor replaces its placeholder wherever the code goes on to use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ronde.parallel.pipeline.skipped_draws import draws_for_absent
from ronde.patching.torch_internals import FakeTensor, FakeTensorMode, pytree
from ronde.rng.draws import SlicedDraws
from ronde.tensor.layout import Layout
from ronde.tensor.shard import Shard, innermost_rows

__all__ = ["Absence", "AbsentTensor", "Made", "is_absent", "packed"]


@dataclasses.dataclass(frozen=True, slots=True)
class AbsentTensor:
    """Description of a tensor that another rank has.

    Attributes:
        stride: stride of a dense tensor with the same order of dimensions in memory.
        gradient: whether it requires a gradient.
        cut: layout of a sequence with `shape` as this rank's part; None for a plain tensor.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool
    cut: Layout | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> AbsentTensor:
        rows, cut = innermost_rows(tensor), tensor._layout if isinstance(tensor, Shard) else None
        lies = torch.empty_like(rows, device="meta", memory_format=torch.preserve_format).stride()
        return cls(tuple(rows.shape), lies, rows.dtype, rows.requires_grad, cut)

    def room(self, device: torch.device) -> torch.Tensor:
        """Allocate memory for its elements, uninitialized, with its strides."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


def is_absent(value: Any) -> bool:
    return isinstance(innermost_rows(value), FakeTensor)


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """Operation between units that made a tensor.

    Attributes:
        place: index of the operation among those of its micro-batch.
        given: leaves of its arguments.
    """

    place: int
    given: list[Any]


Before = Callable[[int, list[Any]], None]
"""Callback with the index of an operation and the leaves of its arguments, which it may replace."""


class Absence(TorchFunctionMode):
    """Mode that replaces placeholders by received tensors.

    Args:
        device: device of the missing tensors.
        before: callback before each operation of the code between units.
        notes: whether to remember the operation that made each tensor.
    """

    def __init__(self, device: torch.device, before: Before, *, notes: bool) -> None:
        super().__init__()
        self._device = device
        self._before = before
        self._notes = notes
        # Never entered: operations on real tensors stay real.
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._real: dict[int, tuple[Any, torch.Tensor]] = {}
        self._made: dict[int, tuple[Any, Made]] = {}
        self._count = 0

    def stand_in(self, shape: AbsentTensor) -> torch.Tensor:
        with self._mode:
            return torch.empty_strided(shape.shape, shape.stride, dtype=shape.dtype, device=self._device)

    def received(self, stand_in: Any, tensor: torch.Tensor) -> None:
        self._real[id(stand_in)] = stand_in, tensor

    def real(self, value: Any) -> Any:
        """Return the received tensor of a placeholder; other values unchanged."""
        found = self._real.get(id(value)) if is_absent(value) else None
        return value if found is None else found[1]

    def made(self, value: Any) -> Made | None:
        """Return the operation that made a tensor.

        None for an input, and for a unit's output.
        """
        found = self._made.get(id(value))
        return None if found is None else found[1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place, self._count = self._count, self._count + 1
        values, structure = pytree.tree_flatten((args, kwargs or {}))
        values = [self.real(value) for value in values]
        self._before(place, values)
        args, kwargs = pytree.tree_unflatten(values, structure)
        with self._drawing(values):
            made = func(*args, **kwargs)
        if self._notes:
            given = Made(place, values)
            for each in pytree.tree_leaves(made):
                if isinstance(each, torch.Tensor) and not any(each is value for value in values):
                    self._made[id(each)] = each, given
        return made

    def _drawing(self, values: list[Any]) -> AbstractContextManager[Any]:
        """Return a mode that draws for absent values, unless whole batches are drawn."""
        if SlicedDraws.active() is None and any(map(is_absent, values)):
            return draws_for_absent(self._device)
        return nullcontext()


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements without gaps, detached; a copy where there are gaps."""
    return tensor.detach().contiguous() if tensor.is_contiguous() else tensor.detach().clone()

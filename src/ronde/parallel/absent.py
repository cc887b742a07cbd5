"""Tensors that another rank has: here they have a shape and no elements.

The code of a model between its stages is carried out by every rank. What comes of a stage on another rank is
a `FakeTensor` here, and so is what is computed of it; what is computed of values that every rank has is real.
One that has been received is put in the place of its stand-in wherever the code goes on to use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ronde.parallel.skipped_draws import draws_for_absent
from ronde.patching.torch_internals import FakeTensor, FakeTensorMode, pytree
from ronde.rng.draws import SlicedDraws
from ronde.tensor.layout import Layout
from ronde.tensor.shard import Shard, innermost_rows

__all__ = ["Absence", "Made", "Shape", "is_absent", "packed"]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Description of a tensor that another rank has.

    Attributes:
        stride: stride of a tensor without gaps whose elements lie in the same order.
        gradient: whether it requires a gradient.
        cut: layout of a sequence, of which `shape` is this rank's part; None for a plain tensor.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool
    cut: Layout | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Shape:
        rows, cut = innermost_rows(tensor), tensor._layout if isinstance(tensor, Shard) else None
        lies = torch.empty_like(rows, device="meta", memory_format=torch.preserve_format).stride()
        return cls(tuple(rows.shape), lies, rows.dtype, rows.requires_grad, cut)

    def room(self, device: torch.device) -> torch.Tensor:
        """Memory for its elements, which are undefined, in the order in which they lie."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


def is_absent(value: Any) -> bool:
    return isinstance(innermost_rows(value), FakeTensor)


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """Operation between units that made a tensor.

    Attributes:
        place: number of the operation among those of its micro-batch.
        given: the leaves of its arguments.
    """

    place: int
    given: list[Any]


Before = Callable[[int, list[Any]], None]
"""Is told the place of an operation and the leaves of its arguments, some of which it may replace."""


class Absence(TorchFunctionMode):
    """While it is entered, what has been received is used in the place of its stand-ins.

    Args:
        device: of what is stood in for.
        before: hears of each operation of the code between units.
        notes: remember how each tensor was made.
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

    def stand_in(self, shape: Shape) -> torch.Tensor:
        with self._mode:
            return torch.empty_strided(shape.shape, shape.stride, dtype=shape.dtype, device=self._device)

    def received(self, stand_in: Any, tensor: torch.Tensor) -> None:
        self._real[id(stand_in)] = stand_in, tensor

    def real(self, value: Any) -> Any:
        """A value, or what has been received of it."""
        found = self._real.get(id(value)) if is_absent(value) else None
        return value if found is None else found[1]

    def made(self, value: Any) -> Made | None:
        """By which operation a tensor was made; None for what is nobody's, or that of a unit."""
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
        """Return a mode that draws for absent values, where none draws for whole batches."""
        if SlicedDraws.active() is None and any(map(is_absent, values)):
            return draws_for_absent(self._device)
        return nullcontext()


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements without gaps, detached; a copy where there are gaps."""
    return tensor.detach().contiguous() if tensor.is_contiguous() else tensor.detach().clone()

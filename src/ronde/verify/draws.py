"""Records a model's random draws in a forward, and repeats them for some rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from ronde.patching.torch_internals import TorchDispatchMode
from ronde.rng.draws import UnknownDraw, find_axis, is_random

__all__ = ["Draws", "UnknownDraw"]


class Draws:
    """Random operations of one forward on `rows` rows, in their order."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._drawn: list[_Drawn] = []

    def noted(self) -> TorchDispatchMode:
        """Return a mode that records the draws made under it."""
        return _Noted(self._drawn)

    @property
    def known(self) -> bool:
        """Tell whether all draws can be repeated.

        If not, a checkpoint must not even be tried: it cannot be left halfway.
        """
        return all(each.outcome is not None for each in self._drawn)

    def again(self, indices: torch.Tensor) -> TorchDispatchMode:
        """Return a mode in which a forward on some rows repeats their draws.

        Args:
            indices: numbers of the rows, [n].

        Raises:
            UnknownDraw: raised by an operation that was not recorded, or not with these rows.
        """
        return _Again(self._drawn, self._rows, indices)


class _Drawn:
    """One draw: operation, outcome, and basis (the shape that sets the amount)."""

    __slots__ = ("basis", "func", "outcome")

    def __init__(self, func: Any, basis: Sequence[int], outcome: tuple[torch.Tensor, ...] | None) -> None:
        self.func, self.basis, self.outcome = func, basis, outcome


class _Noted(TorchDispatchMode):
    def __init__(self, drawn: list[_Drawn]) -> None:
        super().__init__()
        self._drawn = drawn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        basis = _basis(args)
        result = func(*args, **(kwargs or {}))
        if is_random(func, args, kwargs):
            outcome = result if isinstance(result, tuple) else (result,)
            known = all(isinstance(each, torch.Tensor) for each in outcome) and not _computed_again()
            self._drawn.append(
                _Drawn(func, basis, tuple(each.clone() for each in outcome) if known else None)
            )
        return result


class _Again(TorchDispatchMode):
    def __init__(self, drawn: list[_Drawn], rows: int, indices: torch.Tensor) -> None:
        super().__init__()
        self._left = iter(drawn)
        self._rows, self._indices = rows, indices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_random(func, args, kwargs):
            return func(*args, **(kwargs or {}))
        drawn = next(self._left, None)
        if drawn is None or drawn.func is not func or drawn.outcome is None:
            raise UnknownDraw(func._schema.name)
        axis = self._axis(drawn.basis, _basis(args))
        some = [self._some(each, axis) for each in drawn.outcome]
        if func._schema.name.endswith("_"):
            return args[0].copy_(some[0])
        return tuple(some) if len(some) > 1 else some[0]

    def _axis(self, whole: Sequence[int], part: Sequence[int]) -> int | None:
        if len(self._indices) < self._rows:
            return find_axis(whole, part, self._rows, len(self._indices))
        # All rows in another order: sizes do not tell the axis, so it is the first possible one; a wrong one
        # shows.
        return next((axis for axis, size in enumerate(whole) if size and size % self._rows == 0), None)

    def _some(self, value: torch.Tensor, axis: int | None) -> torch.Tensor:
        """Select the rows' draws along `axis`, where each row has an equal share."""
        if axis is None:
            return value.clone()
        rows = value.unflatten(axis, (self._rows, -1))
        return rows.index_select(axis, self._indices.to(value.device)).flatten(axis, axis + 1)


def _basis(args: Sequence[Any]) -> Sequence[int]:
    """Return the shape of the first tensor or sequence among the arguments."""
    for value in args:
        if isinstance(value, torch.Tensor):
            return tuple(value.shape)
        if isinstance(value, (list, tuple)):
            return tuple(value)
    return ()


def _computed_again() -> bool:
    """Return whether `torch.utils.checkpoint` is on the stack: it draws again in backward."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is vars(torch.utils.checkpoint):
            return True
        frame = frame.f_back
    return False

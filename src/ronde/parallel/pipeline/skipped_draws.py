"""Draws of stages on other ranks, repeated to keep generators equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from ronde.patching.torch_internals import FakeTensor, TorchDispatchMode, pytree
from ronde.rng.by_parts import carry_out
from ronde.rng.draws import draws_from_default, is_drawn_by_others

__all__ = ["DescribedDraw", "ReportedDraws", "draw_again", "draws_for_absent"]

DescribedDraw = tuple[str, str, Any]
"""Name, overload and arguments of an operation that draws, in a form to send."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Tensor:
    """An argument of a draw, without its values.

    A draw advances a generator by the same amount for all values.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@final
class ReportedDraws(TorchDispatchMode):
    """Mode that reports draws from default generators, for repetition on other ranks.

    Args:
        report: callback before each draw, with whether it is for a tensor of another rank.
    """

    supports_higher_order_operators = True

    def __init__(self, report: Callable[[DescribedDraw, bool], object]) -> None:
        super().__init__()
        self._report = report

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_drawn_by_others(func, args, kwargs):
            return carry_out(self, func, args, kwargs)
        if draws_from_default(func, args, kwargs):
            is_absent = any(isinstance(each, FakeTensor) for each in pytree.tree_leaves((args, kwargs)))
            name, described = func._schema.name.split("::")[1], pytree.tree_map(_described, (args, kwargs))
            self._report((name, func._overloadname, described), is_absent)
        return func(*args, **kwargs)


def draws_for_absent(device: torch.device) -> ReportedDraws:
    """Return a mode that draws for tensors of other ranks.

    `nn.Dropout` between stages has no parameters and belongs to no stage.

    Args:
        device: device of the generator.
    """

    def report(draw: DescribedDraw, is_absent: bool) -> None:
        if is_absent:
            draw_again([draw], device)

    return ReportedDraws(report)


def draw_again(drawn: Sequence[DescribedDraw], device: torch.device) -> None:
    """Repeat draws, and discard the values."""
    for name, overload, described in drawn:
        args, kwargs = pytree.tree_map(lambda each: _made(each, device), described)
        with torch.no_grad():
            getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return _Tensor(tuple(value.shape), tuple(value.stride()), value.dtype)


def _made(value: Any, device: torch.device) -> Any:
    if not isinstance(value, _Tensor):
        return value
    room = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)
    return room.fill_(0.5 if value.dtype.is_floating_point else 1)

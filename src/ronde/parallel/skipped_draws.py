"""Draws of stages on other ranks: each rank draws as much, so that generators stay in step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import torch

from ronde.patching.torch_internals import FakeTensor, TorchDispatchMode, pytree
from ronde.rng.by_parts import carry_out
from ronde.rng.draws import draws_from_default, is_drawn_by_others

__all__ = ["DrawsOfAbsent", "DrawsOfUnit", "draw_again"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Tensor:
    """An argument of a draw, whose values do not matter: a draw costs a generator the same for all."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class DrawsOfUnit(TorchDispatchMode):
    """Inside, notes what is drawn.

    Attributes:
        drawn: name, overload and arguments of each operation, which can be told another rank.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[str, str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_drawn_by_others(func, args, kwargs):
            return carry_out(self, func, args, kwargs)
        if draws_from_default(func, args, kwargs):
            self.drawn.append(_draw(func, args, kwargs))
        return func(*args, **kwargs)


@final
class DrawsOfAbsent(TorchDispatchMode):
    """Mode that draws for tensors of other ranks: `nn.Dropout` between stages is no stage of its own.

    Args:
        device: device whose generator draws.
    """

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_drawn_by_others(func, args, kwargs):
            return carry_out(self, func, args, kwargs)
        is_absent = any(isinstance(each, FakeTensor) for each in pytree.tree_leaves((args, kwargs)))
        if is_absent and draws_from_default(func, args, kwargs):
            draw_again([_draw(func, args, kwargs)], self._device)
        return func(*args, **kwargs)


def draw_again(drawn: Sequence[tuple[str, str, Any]], device: torch.device) -> None:
    """Draw as much as was noted, and let go of it."""
    for name, overload, described in drawn:
        args, kwargs = pytree.tree_map(lambda each: _made(each, device), described)
        with torch.no_grad():
            getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)


def _draw(func: Any, args: Any, kwargs: Any) -> tuple[str, str, Any]:
    """Describe a draw so that another rank can repeat it."""
    return func._schema.name.split("::")[1], func._overloadname, pytree.tree_map(_described, (args, kwargs))


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return _Tensor(tuple(value.shape), tuple(value.stride()), value.dtype)


def _made(value: Any, device: torch.device) -> Any:
    if not isinstance(value, _Tensor):
        return value
    room = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)
    return room.fill_(0.5 if value.dtype.is_floating_point else 1)

"""What a stage on another rank draws: every rank draws as much, so that generators stay in step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ronde.patching.torch_internals import TorchDispatchMode, pytree
from ronde.rng.by_parts import carry_out
from ronde.rng.draws import draws_from_default, is_drawn_by_others

__all__ = ["DrawsOfUnit", "draw_again"]


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
            name, _, overload = func._schema.name.split("::")[1], "", func._overloadname
            self.drawn.append((name, overload, pytree.tree_map(_described, (args, kwargs))))
        return func(*args, **kwargs)


def draw_again(drawn: Sequence[tuple[str, str, Any]], device: torch.device) -> None:
    """Draw as much as was noted, and let go of it."""
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

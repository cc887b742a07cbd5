"""Temporary replacement of modules' parameters, or of their forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["forwards", "holding"]

_MISSING: Any = object()


@contextmanager
def holding(module: nn.Module, stand_in: Callable[[torch.Tensor], torch.Tensor | None]) -> Iterator[None]:
    """Replace parameters of a module and its children inside the `with` block.

    Parameters for which `stand_in` returns None stay.
    """
    swapped: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for part in module.modules():
            members: dict[str, Any] = part._parameters
            for name, parameter in members.items():
                found = None if parameter is None else stand_in(parameter)
                if found is not None:
                    swapped.append((members, name, parameter))
                    members[name] = found
            if isinstance(part, nn.RNNBase):  # it compares and lists its weights itself
                held = part.__dict__
                swapped += [(held, name, held[name]) for name in ("_flat_weights", "_flat_weight_refs")]
        yield
    finally:
        for members, name, before in swapped:
            members[name] = before


@contextmanager
def forwards(replaced: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forwards of modules inside the `with` block."""
    before = [(module.__dict__, module.__dict__.get("forward", _MISSING)) for module in replaced]
    try:
        for module, forward in replaced.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for members, forward in before:
            if forward is _MISSING:
                members.pop("forward", None)
            else:
                members["forward"] = forward

"""Modules hold other parameters, or have other forwards, for a while."""

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
    """Inside, a module and those in it hold what stands for their parameters, where something does."""
    swapped: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for part in module.modules():
            members: dict[str, Any] = part._parameters
            for name, parameter in members.items():
                found = None if parameter is None else stand_in(parameter)
                if found is not None:
                    swapped.append((members, name, parameter))
                    members[name] = found
            if isinstance(part, nn.RNNBase):  # it looks itself whether they are others, and lists them
                held = part.__dict__
                swapped += [(held, name, held[name]) for name in ("_flat_weights", "_flat_weight_refs")]
        yield
    finally:
        for members, name, before in swapped:
            members[name] = before


@contextmanager
def forwards(replaced: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Inside, modules have other forwards."""
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

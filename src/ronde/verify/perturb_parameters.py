"""A twin of the plain run, with parameters that start one rounding higher."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from ronde.patching.torch_internals import unsafe_preserve_version_counter

__all__ = ["RoundedUp"]


class RoundedUp:
    """Moves each parameter to the next larger number, at its model's first call."""

    def __init__(self) -> None:
        self._moved: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._known: set[int] = set()
        self._depth = 0

    def install(self) -> None:
        twin, call = self, torch.nn.Module.__call__

        def moved_call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if twin._depth == 0 and module not in twin._moved:
                twin._move(module)
            twin._depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                twin._depth -= 1

        torch.nn.Module.__call__ = moved_call

    def _move(self, module: torch.nn.Module) -> None:
        self._moved.add(module)
        for parameter in module.parameters():
            if id(parameter) in self._known or not parameter.is_floating_point():
                continue
            self._known.add(id(parameter))
            # Hidden from autograd: an earlier call may have saved the parameter for its backward.
            with torch.no_grad(), unsafe_preserve_version_counter(parameter):
                parameter.copy_(_next(parameter))


def _next(numbers: torch.Tensor) -> torch.Tensor:
    """Return the next larger numbers of the type; float16 has no operation for that."""
    if numbers.dtype is torch.float16:
        return numbers + numbers.abs() * torch.finfo(torch.float16).eps
    return torch.nextafter(numbers, torch.full_like(numbers, math.inf))

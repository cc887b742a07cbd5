"""A twin of the plain run whose parameters start one rounding higher, or lower."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

__all__ = ["Nudged"]


class Nudged:
    """Moves each parameter to the next number of its type, when a model that has it is first called.

    Args:
        up: towards infinity, else towards minus infinity.
    """

    def __init__(self, *, up: bool) -> None:
        self._towards = math.inf if up else -math.inf
        self._moved: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._known: set[int] = set()
        self._depth = 0

    def install(self) -> None:
        nudged, call = self, torch.nn.Module.__call__

        def moved_call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if nudged._depth == 0 and module not in nudged._moved:
                nudged._move(module)
            nudged._depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                nudged._depth -= 1

        torch.nn.Module.__call__ = moved_call

    def _move(self, module: torch.nn.Module) -> None:
        self._moved.add(module)
        for parameter in module.parameters():
            if id(parameter) in self._known or not parameter.is_floating_point():
                continue
            self._known.add(id(parameter))
            # Beside autograd: an earlier call may have kept it for its backward.
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(parameter):
                parameter.copy_(_next(parameter, self._towards))


def _next(numbers: torch.Tensor, towards: float) -> torch.Tensor:
    """The next numbers of the type; float16 has no operation for that."""
    if numbers.dtype is torch.float16:
        unit = torch.finfo(torch.float16).eps * math.copysign(1.0, towards)
        return numbers + numbers.abs() * unit
    return torch.nextafter(numbers, torch.full_like(numbers, towards))

"""Base of layer-wise optimizers, with rates by norms of whole parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

__all__ = ["Layerwise", "check", "ratio"]


class Layerwise(Optimizer):
    """An optimizer that steps layer by layer, each by its own gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make one step; return the loss of `closure`, where one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, _dense(parameter, type(self).__name__), group)
        return loss

    @abstractmethod
    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Step one parameter of a group."""


def ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """Return above / below, and 1 where either is zero.

    So a layer of zeros, or with a zero gradient, uses the plain rate. No number is read on the host, which
    would wait for the device.
    """
    usable = (above > 0) & (below > 0)
    return torch.where(
        usable, above / torch.where(usable, below, torch.ones_like(below)), torch.ones_like(above)
    )


def _dense(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """Return the gradient of a parameter.

    Raises:
        RuntimeError: the gradient is sparse.
    """
    gradient: Any = parameter.grad
    if gradient.is_sparse:
        raise RuntimeError(
            f"{name} does not support sparse gradients; use sparse=False, or SparseAdam [R295]"
        )
    return gradient


def check(name: str, value: float, *, below: float = float("inf")) -> None:
    """Raise ValueError for a hyper-parameter that is negative, or not below a bound."""
    if not 0.0 <= value < below:
        raise ValueError(
            f"{name}={value} is out of range; give a number from 0"
            + ("" if below == float("inf") else f" and below {below:g}")
            + " [R295]"
        )

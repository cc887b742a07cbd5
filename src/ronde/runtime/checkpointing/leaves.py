"""Leaves of autograd in a script, numbered in the order of their first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["Leaves"]


class Leaves:
    """Leaves by number, the same in each run of a script."""

    def __init__(self) -> None:
        self._all: list[torch.Tensor] = []
        self._known: set[int] = set()
        # By number, made where backward is skipped.
        self._gradients: dict[int, torch.Tensor] = {}

    def add_optimizer(self, optimizer: Any) -> None:
        """Number the parameters of an optimizer."""
        for group in optimizer.param_groups:
            for value in group["params"]:
                self._add(value)

    def add_given(self, values: Iterable[Any]) -> None:
        """Number the leaves among the inputs of a model."""
        for value in values:
            if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
                self._add(value)

    def _add(self, value: torch.Tensor) -> None:
        if id(value) not in self._known:
            self._known.add(id(value))
            self._all.append(value)

    def having(self, has_gradient: Callable[[torch.Tensor], bool]) -> list[int]:
        """Return the numbers of the leaves with a gradient."""
        return [number for number, value in enumerate(self._all) if has_gradient(value)]

    def make_gradients(self, numbers: Iterable[int]) -> None:
        """Give these leaves a gradient of zeros, where they have none."""
        for number in numbers:
            value = self._all[number]
            if value.grad is None:
                if number not in self._gradients:
                    self._gradients[number] = torch.zeros_like(value, requires_grad=False)
                value.grad = self._gradients[number]

    def forget_made(self) -> None:
        """Forget the gradients of zeros."""
        self._gradients.clear()

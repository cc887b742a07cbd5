"""What a rank holds of parameters and gradients: all of them, or its parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.parallel.division import Division
from ronde.parallel.flat import flat_like
from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.sync.gradient_parts import GradientParts, Ranges
from ronde.sync.home import Home

__all__ = ["HeldParts"]


class HeldParts:
    """What an update in parts goes by.

    Attributes:
        division: who updates which elements.
        gradients: parts of gradients; None where every rank has all of each.
        parameters: parts of parameters; None where every rank has all of each.
        home: where this rank's part of an optimizer's state lives, and its step runs.
    """

    def __init__(
        self,
        division: Division,
        home: Home,
        gradients: GradientParts | None = None,
        parameters: ShardedParameters | None = None,
    ) -> None:
        self.division = division
        self.home = home
        self.gradients = gradients
        self.parameters = parameters

    def divide(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        return self.division.assign(tensors)

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """This rank's elements of a parameter in parts; None for a whole one."""
        return None if self.parameters is None else self.parameters.own(tensor)

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        if self.gradients is not None and tensor in self.gradients:
            return True
        return tensor.grad is not None

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether the gradient, where there is one, can be cut as the parameter is."""
        if self.gradients is not None and tensor in self.gradients:
            return True
        gradient = tensor.grad
        return gradient is None or (gradient.layout is torch.strided and gradient.dtype is tensor.dtype)

    def stands(self, tensor: torch.Tensor) -> bool:
        """Whether one that has been divided fits as it was divided."""
        return self.fits(tensor)

    def agree(self, tensor: torch.Tensor, ranges: Ranges) -> None:
        """Make a gradient whole that was cut otherwise than its parameter. All ranks come here."""
        if self.gradients is not None:
            self.gradients.agree(tensor, ranges)

    def gradient_beside(self, tensor: torch.Tensor, own: tuple[int, int]) -> list[torch.Tensor]:
        """What this rank has of the gradient beside its own elements."""
        if self.gradients is not None and tensor in self.gradients:
            return []
        gradient = tensor.grad
        if gradient is None:
            return []
        elements = flat_like(gradient, tensor)
        if elements.data_ptr() != gradient.data_ptr():
            return [gradient]  # `own_gradient` gives a copy
        return [elements[: own[0]], elements[own[1] :]]

    def own_gradient(self, tensor: torch.Tensor, own: tuple[int, int]) -> torch.Tensor:
        """This rank's elements of the gradient that a parameter has."""
        part = None if self.gradients is None else self.gradients.part(tensor)
        if part is not None:
            return part
        gradient = tensor.grad
        assert gradient is not None
        return flat_like(gradient, tensor)[slice(*own)]

    def begin_update(self) -> None:
        if self.parameters is not None:
            self.parameters.begin_update()

    def end_update(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.parameters is not None:
            self.parameters.end_update(tensors)

"""A number that tells parameters apart which ranks have not drawn alike."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

__all__ = ["sum_of_parameters"]


def sum_of_parameters(optimizer: Any) -> float:
    """The sum of all its parameters that have values."""
    return sum(
        float(value.detach().sum())  # one after the other: parameters in parts are gathered for it
        for group in optimizer.param_groups
        for value in group["params"]
        if not is_lazy(value) and _has_values(value)
    )


def _has_values(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.layout is torch.strided and not value.is_meta

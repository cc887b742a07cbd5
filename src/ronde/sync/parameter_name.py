"""Name of a parameter for messages, as its model has it."""

from __future__ import annotations

import gc

import torch
from torch import nn

__all__ = ["living_modules", "parameter_name"]


def living_modules() -> list[nn.Module]:
    """Return all modules of the process except ronde's own wrappers."""
    found = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    return [each for each in found if getattr(type(each), "is_the_scripts", True)]


def parameter_name(tensor: torch.Tensor) -> str:
    """Return a tensor's longest name in a living model, or its shape.

    It looks at every object of the process: for errors only.
    """
    names = (
        f"{prefix}.{name}" if prefix else name
        for model in living_modules()
        for prefix, part in model.named_modules()
        for name, parameter in part._parameters.items()
        if parameter is tensor
    )
    return max(names, key=len, default=f"a parameter of shape {list(tensor.shape)}")

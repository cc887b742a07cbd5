"""Names a parameter for a message, as its model does."""

from __future__ import annotations

import gc

import torch
from torch import nn

__all__ = ["living_modules", "parameter_name"]


def living_modules() -> list[nn.Module]:
    """All modules of the process, but for those that ronde has put around the script's."""
    found = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    return [each for each in found if getattr(type(each), "is_the_scripts", True)]


def parameter_name(tensor: torch.Tensor) -> str:
    """The longest name that a living model has for the tensor, or its shape in words.

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

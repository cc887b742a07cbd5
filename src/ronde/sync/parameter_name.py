"""Names a parameter for a message, as its model does."""

from __future__ import annotations

import gc

import torch
from torch import nn

__all__ = ["parameter_name"]


def parameter_name(tensor: torch.Tensor) -> str:
    """The longest name that a living model has for the tensor, or its shape in words.

    It looks at every object of the process: for errors only.
    """
    models = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    names = (
        f"{prefix}.{name}" if prefix else name
        for model in models
        for prefix, part in model.named_modules()
        for name, parameter in part._parameters.items()
        if parameter is tensor
    )
    return max(names, key=len, default=f"a parameter of shape {list(tensor.shape)}")

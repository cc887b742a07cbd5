"""Moves of an optimizer's options and state for a step in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["as_on_device", "can_step_on_host", "options_on_host"]

# Attributes that GradScaler sets on an optimizer with a step that unscales.
_OF_SCALER = ("grad_scale", "found_inf")


def can_step_on_host(optimizer: Any) -> bool:
    """Return whether torch permits a step in host memory.

    A step that CUDA graphs may capture is for devices only.
    """
    return not any(group.get("capturable", False) for group in optimizer.param_groups)


@contextmanager
def options_on_host(optimizer: Any) -> Iterator[None]:
    """Move options that are tensors to host memory, inside the `with` block.

    Options that are tensors are a learning rate and GradScaler's scale. torch's fused step would copy the
    scale itself, without waiting for the copy.
    """
    places = [vars(optimizer), *optimizer.param_groups]
    found = [
        (place, name, value)
        for place in places
        for name, value in place.items()
        if (place is not places[0] or name in _OF_SCALER) and _elsewhere(value)
    ]
    for place, name, value in found:
        place[name] = value.cpu()
    try:
        yield
    finally:
        for place, name, value in found:
            place[name] = value


def as_on_device(optimizer: Any, state: Any) -> Any:
    """Move scalars of a whole state to where a device's step has them.

    torch makes them on the CPU, except for its fused steps and ASGD. Returns the state.
    """
    for group in optimizer.param_groups:
        if not (group.get("fused") or type(optimizer) is torch.optim.ASGD):
            continue
        for tensor in group["params"]:
            entry = state.get(tensor, {})
            for key, value in entry.items():
                if isinstance(value, torch.Tensor) and not value.dim() and value.device != tensor.device:
                    entry[key] = value.to(tensor.device)
    return state


def _elsewhere(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"

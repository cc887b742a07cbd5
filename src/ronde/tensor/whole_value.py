"""The whole value of a global tensor: gathered once, kept, and known to be changed by its version."""

from __future__ import annotations

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ronde.tensor.edges import Gather, gather_data
from ronde.tensor.shard import Shard

__all__ = ["set_whole", "was_changed", "whole_value"]


def whole_value(value: Shard) -> torch.Tensor:
    if value._full is None:
        # Inside torch.func's transforms too, this is a value from outside of them.
        with temporarily_clear_interpreter_stack():
            set_whole(value, _gathered(value))
    assert value._full is not None
    return value._full


def set_whole(value: Shard, full: torch.Tensor) -> None:
    value._full, value._full_version = full, _version(full)


def _gathered(value: Shard) -> torch.Tensor:
    local = value._rows
    assert local is not None
    if value._ahead is not None:
        return value._ahead()
    with torch.inference_mode(local.is_inference() and torch.is_inference_mode_enabled()):
        if not local.requires_grad:
            return gather_data(value._context, local, value._layout)
        with torch.enable_grad():
            return Gather.apply(local, value._context, value._layout)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def was_changed(value: Shard) -> bool:
    """The script changed the whole value, by a view of it or by a function that works in place."""
    return value._full is not None and _version(value._full) != value._full_version

"""The whole value of a global tensor: gathered once, kept, and known to be changed by its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ronde.tensor.edges import Gather, gather_data

if TYPE_CHECKING:
    from ronde.tensor.global_tensor import GlobalTensor

__all__ = [
    "note_changes",
    "past_graph",
    "set_whole",
    "was_changed",
    "was_changed_in_graph",
    "was_changed_past_graph",
    "whole_value",
]


def whole_value(value: GlobalTensor) -> torch.Tensor:
    if value._full is None:
        # Inside torch.func's transforms too, this is a value from outside of them.
        with temporarily_clear_interpreter_stack():
            set_whole(value, _gathered(value))
    assert value._full is not None
    return value._full


def set_whole(value: GlobalTensor, full: torch.Tensor) -> None:
    value._full, value._full_version = full, _version(full)


def _gathered(value: GlobalTensor) -> torch.Tensor:
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


def was_changed(value: GlobalTensor) -> bool:
    """The script changed the whole value, by a view of it or by a function that works in place."""
    return was_changed_in_graph(value) or was_changed_past_graph(value)


def was_changed_in_graph(value: GlobalTensor) -> bool:
    """So that its version tells of it."""
    return value._full is not None and _version(value._full) != value._full_version


def note_changes(value: GlobalTensor) -> None:
    """What was changed until now has been seen to."""
    if value._full is not None:
        value._full_version = _version(value._full)
    if value._past is not None:
        value._past_version = _version(value._past)


def past_graph(value: GlobalTensor) -> torch.Tensor:
    """The whole value's memory as `.data` gives it, one for all times it is asked: writes count together."""
    if value._past is None:
        value._past, value._past_version = whole_value(value).data, 0
        value._context.past_graph[id(value)] = value
    if value._rows is not None and value._rows.requires_grad:
        value._context.until_backward[id(value)] = value
    return value._past


def was_changed_past_graph(value: GlobalTensor) -> bool:
    """The script wrote into the whole value by way of its `.data`."""
    return value._past is not None and _version(value._past) != value._past_version

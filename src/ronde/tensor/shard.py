"""What a global tensor keeps on this rank: its rows, and the whole value.

That is gathered once, kept, and known to be changed by its version.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ronde.patching.torch_internals import temporarily_clear_interpreter_stack
from ronde.tensor.context import Context
from ronde.tensor.edges import Gather, gather_data
from ronde.tensor.layout import Layout

__all__ = ["Origin", "Rule", "Shard", "set_whole", "was_changed", "whole_value"]

Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """A tensor that another may be a view of, and how the other's whole value is made from its own."""

    # Gives that tensor; None where it was held by a weak reference, and is gone.
    base: Callable[[], Shard | None]
    view: Callable[[torch.Tensor], torch.Tensor]
    # It is a matter of strides whether that is a view or a copy.
    may_copy: bool
    # It is `.data`, which shares memory but neither the graph nor the version.
    leaves_graph: bool


class Shard(torch.Tensor):
    """The state of a global tensor, which is its only subclass."""

    # Not in its dictionary, which is the script's, and which libraries copy to what they make of a tensor.
    __slots__ = (
        "_ahead", "_context", "_full", "_full_version", "_joined", "_layout", "_origin", "_rows", "_rules",
        "_views",
    )  # fmt: skip
    _context: Context
    _layout: Layout
    _rules: dict[Any, Rule]
    # This rank's rows, part of the graph; None once the whole value is what the tensor is.
    _rows: torch.Tensor | None
    # The whole value, part of the graph, when it has been asked for, and its version then.
    _full: torch.Tensor | None
    _full_version: int
    # What this one may be a view of, and what may be views of it.
    _origin: Origin | None
    _views: list[weakref.ref[Shard]]
    # The whole value of a view lies in that of what it is a view of; else it was gathered for itself.
    _joined: bool
    # Gives the whole value, for which a gather was started when the tensor was made.
    _ahead: Callable[[], torch.Tensor] | None


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

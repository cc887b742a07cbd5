"""State of a global tensor on this rank: its rows, and the whole value.

The whole value is gathered once and kept; its version counter tells whether it was changed.

Where a mesh cuts a value along two axes, the shard of the outer group is itself a global tensor of the inner
one. A collective of the outer group then works on the innermost rows (`innermost`).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.patching.torch_internals import (
    DisableTorchFunction,
    make_wrapper_subclass,
    temporarily_clear_interpreter_stack,
)
from ronde.tensor.context import Context, in_transform
from ronde.tensor.edges import Gather, Slice, gather_data
from ronde.tensor.layout import Layout, memory_order

__all__ = [
    "Edge", "Origin", "Rule", "Shard", "innermost", "innermost_rows", "laid", "order_in_memory", "set_whole",
    "shard_of", "version_of", "was_changed", "whole_value",
]  # fmt: skip

Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
Edge = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Possible base of a view, with the function that makes the view."""

    # Function that returns the base; None if it was referenced weakly, and is gone.
    base: Callable[[], Shard | None]
    view: Callable[[torch.Tensor], torch.Tensor]
    # Whether strides decide if the result is a view or a copy.
    may_copy: bool
    # Whether it is `.data`, which shares memory but neither the graph nor the version.
    leaves_graph: bool


class Shard(torch.Tensor):
    """State of a global tensor; `GlobalTensor` is the only subclass."""

    # Slots, as the dictionary is the script's, and libraries copy it to tensors made of this one.
    __slots__ = (
        "_ahead", "_context", "_full", "_full_version", "_joined", "_layout", "_origin", "_rows", "_rules",
        "_views",
    )  # fmt: skip
    _context: Context
    _layout: Layout
    _rules: dict[Any, Rule]
    # This rank's rows, part of the graph; None once only the whole value is valid.
    _rows: torch.Tensor | None
    # The whole value, part of the graph, once it was gathered, and its version at that time.
    _full: torch.Tensor | None
    _full_version: int
    # Possible base of this tensor, and possible views of it.
    _origin: Origin | None
    _views: list[weakref.ref[Shard]]
    # Whether the whole value of a view lies in that of its base; else it was gathered for itself.
    _joined: bool
    # Function that returns the whole value; its gather was started with the tensor.
    _ahead: Callable[[], torch.Tensor] | None


def whole_value(value: Shard) -> torch.Tensor:
    if value._full is None:
        # Inside torch.func's transforms too, this is a value from outside of them.
        with temporarily_clear_interpreter_stack():
            set_whole(value, _gathered(value))
    assert value._full is not None
    return value._full


def set_whole(value: Shard, full: torch.Tensor) -> None:
    value._full, value._full_version = full, version_of(full)


def _gathered(value: Shard) -> torch.Tensor:
    local = value._rows
    assert local is not None
    if value._ahead is not None:
        return value._ahead()
    context, layout = value._context, value._layout
    with torch.inference_mode(local.is_inference() and torch.is_inference_mode_enabled()):
        if not local.requires_grad:
            return innermost(lambda rows: gather_data(context, rows, layout), local, layout.dim)
        with torch.enable_grad():
            return innermost(lambda rows: Gather.apply(rows, context, layout), local, layout.dim)


def innermost(edge: Edge, value: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Apply an edge of an outer group to the innermost rows of a value.

    Args:
        edge: differentiable function of plain rows, such as Slice or Gather.
        dim: dimension that the edge cuts or joins; a value that an inner group cuts there is gathered before.
            None for an edge that keeps shapes.
    """
    if not isinstance(value, Shard):
        return edge(value)
    if value._rows is None or value._layout.dim == dim:
        return innermost(edge, whole_value(value), dim)
    return shard_of(
        type(value), value._context, innermost(edge, value._rows, dim), value._layout, value._rules
    )


def innermost_rows(value: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor that this rank has of a value."""
    while isinstance(value, Shard):
        value = whole_value(value) if value._rows is None else value._rows
    return value


def order_in_memory(value: torch.Tensor) -> list[int]:
    """Return dimensions of this rank's rows from the slowest to the fastest in memory."""
    return memory_order(innermost_rows(value))


def laid(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return the tensor with this order of dimensions in memory, copied if necessary.

    The output of a model for a single row may have another memory order than for several: torch ignores the
    place of an axis of length 1, yet chooses some kernels by it.
    """
    if order_in_memory(tensor) == list(order):
        return tensor
    dense = tensor.permute(*order).clone(memory_format=torch.contiguous_format)
    return dense.permute([order.index(dim) for dim in range(tensor.dim())])


class _Shell(torch.autograd.Function):
    """Create the outer tensor with a Gather edge that C++ code also finds."""

    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, kind: type[Shard], context: Context, layout: Layout
    ) -> torch.Tensor:
        ctx.context, ctx.layout = context, layout
        return _shell(kind, local, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return Slice.apply(grad, ctx.context, ctx.layout) * ctx.context.weight, None, None, None


def _shell_with_graph(
    kind: type[Shard], local: torch.Tensor, context: Context, layout: Layout
) -> torch.Tensor:
    if in_transform():
        return _Shell.apply(local, kind, context, layout)
    # Skip what sessions install around functions of the script, and torch's handling of transforms.
    base: Any = super(torch.autograd.Function, _Shell)
    return base.apply(local, kind, context, layout)


def _shell(kind: type[Shard], local: torch.Tensor, layout: Layout) -> torch.Tensor:
    with DisableTorchFunction():
        return make_wrapper_subclass(
            kind, layout.global_shape(local.shape), dtype=local.dtype, device=local.device
        )


def shard_of(
    kind: type[Shard], context: Context, local: torch.Tensor, layout: Layout, rules: dict[Any, Rule]
) -> Any:
    """Create the global tensor with `local` as this rank's shard, cut by `layout`."""
    shell: Any = (
        _shell_with_graph(kind, local, context, layout)
        if local.requires_grad and torch.is_grad_enabled()
        else _shell(kind, local, layout)
    )
    shell._context, shell._layout, shell._rules = context, layout, rules
    shell._rows, shell._full, shell._full_version = local, None, 0
    shell._origin, shell._views, shell._joined, shell._ahead = None, [], False, None
    return shell


def version_of(tensor: torch.Tensor) -> int:
    """Return the version of a tensor, 0 in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def was_changed(value: Shard) -> bool:
    """Return whether the script changed the whole value in place or through a view."""
    return value._full is not None and version_of(value._full) != value._full_version

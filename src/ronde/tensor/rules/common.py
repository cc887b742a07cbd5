"""Helpers of rules: find the cut of a call, and make results global."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import torch

from ronde.tensor.context import Context
from ronde.tensor.edges import Enter, EnterLeaf, SumRanks
from ronde.tensor.global_tensor import GlobalTensor, cut, is_global, localize, wrap
from ronde.tensor.layout import Layout
from ronde.tensor.shard import innermost

__all__ = ["enter", "functions", "is_sharded", "local_operand", "rewrap", "same_layout", "sum_ranks"]

T = torch.Tensor
F = torch.nn.functional


def functions(names: Iterable[str]) -> list[Callable[..., Any]]:
    """Return every public spelling of these operations.

    These are `torch.x`, `Tensor.x`, `torch.nn.functional.x` and `torch.special.x`.
    """
    found: list[Callable[..., Any]] = []
    for name in names:
        for owner in (T,) if name.startswith("__") else (torch, T, F, torch.special):
            function = getattr(owner, name, None)
            if callable(function) and function not in found:
                found.append(function)
    return found


def is_sharded(value: Any, context: Context) -> TypeGuard[GlobalTensor]:
    """Return whether a value is cut over a context's ranks, with valid rows."""
    return is_global(value, context) and value._local is not None


def enter(context: Context, value: torch.Tensor) -> torch.Tensor:
    """Use a replicated value on shards; its gradient becomes the mean over ranks."""
    if not (value.requires_grad and torch.is_grad_enabled()):
        return value
    if value.is_leaf and not value._backward_hooks and context.averages_leaves:
        context.adopt(value)
        return value

    def edge(rows: torch.Tensor) -> torch.Tensor:
        return (EnterLeaf if context.is_averaged_later(rows) else Enter).apply(rows, context)

    return innermost(edge, value)


def sum_ranks(context: Context, value: torch.Tensor) -> torch.Tensor:
    """Sum a value over ranks; the result is replicated."""
    return innermost(lambda rows: SumRanks.apply(rows, context), value)


def same_layout(tensors: Iterable[GlobalTensor]) -> Layout | None:
    """Return the common cut of operands of an element-wise operation, or None.

    Its dimension is counted from the end.
    """
    common: Layout | None = None
    for tensor in tensors:
        if tensor._local is None:
            return None
        layout = tensor._layout.at(tensor._layout.dim - tensor.dim())
        if common is not None and layout != common:
            return None
        common = layout
    return common


def local_operand(context: Context, value: Any, layout: Layout) -> Any:
    """Bring an operand of an element-wise operation to this rank's rows.

    `layout.dim` counts from the end. A plain tensor that spans the batch is cut; one that is broadcast over
    the batch enters whole.
    """
    if is_global(value, context):
        return localize(value)
    if not isinstance(value, torch.Tensor):
        return value
    dim = value.dim() + layout.dim
    if dim < 0 or value.shape[dim] == 1:
        return enter(context, value)
    return cut(context, value, layout.at(dim))


def rewrap(like: GlobalTensor, result: Any, layout: Layout) -> Any:
    """Make every tensor of a result global. A negative `layout.dim` counts from the end."""
    if isinstance(result, torch.Tensor):
        dim = layout.dim if layout.dim >= 0 else result.dim() + layout.dim
        return wrap(like._context, result, layout.at(dim), like._rules)
    if isinstance(result, (tuple, list)):
        items = [rewrap(like, item, layout) for item in result]
        if isinstance(result, list):
            return items
        # torch's named results (`torch.return_types.max`) are built from one sequence.
        return tuple(items) if type(result) is tuple else type(result)(items)
    return result

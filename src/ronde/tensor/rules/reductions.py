"""Reductions over the batch: summed over ranks at once into plain, replicated values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, Rule
from ronde.tensor.rules.common import is_sharded, rewrap, sum_ranks

__all__ = ["rules"]


def rules() -> dict[Any, Rule]:
    return {torch.sum: add_up, torch.Tensor.sum: add_up, torch.mean: average, torch.Tensor.mean: average}


def dimensions(value: torch.Tensor, dim: Any) -> tuple[int, ...]:
    """Return the dimensions of a `dim` argument, non-negative; all for None or ()."""
    if dim is None or dim == () or dim == []:
        return tuple(range(value.dim()))
    chosen = dim if isinstance(dim, (tuple, list, torch.Size)) else (dim,)
    return tuple(int(d) % value.dim() for d in chosen)


def _parse(
    context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any, bool, dict[str, Any]] | None:
    """Return (value, dim, keepdim, rest) of a `sum` or `mean` call, or None."""
    rest = dict(kwargs)
    value, *positional = args or (None,)
    if not set(rest) <= {"dim", "keepdim", "dtype"} or not is_sharded(value, context):
        return None
    if positional and all(isinstance(item, int) and not isinstance(item, bool) for item in positional):
        dim: Any = positional
    elif len(positional) <= 2:
        dim = positional[0] if positional else rest.pop("dim", None)
        if len(positional) == 2:
            rest["keepdim"] = positional[1]
    else:
        return None
    rest.pop("dim", None)
    return value, dim, bool(rest.pop("keepdim", False)), rest


def add_up(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    parsed = _parse(context, args, kwargs)
    if parsed is None:
        return NotImplemented
    value, dim, keepdim, rest = parsed
    dims = dimensions(value, dim)
    local = value._local.sum(dim=dims, keepdim=keepdim, **rest)
    return finish(context, value, local, dims, keepdim)


def average(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    parsed = _parse(context, args, kwargs)
    if parsed is None:
        return NotImplemented
    value, dim, keepdim, rest = parsed
    dims = dimensions(value, dim)
    if value._layout.dim not in dims:
        return finish(context, value, value._local.mean(dim=dims, keepdim=keepdim, **rest), dims, keepdim)
    if not (value.is_floating_point() or value.is_complex() or "dtype" in rest):
        return NotImplemented  # torch's own error
    narrow = rest.get("dtype", value.dtype) in (torch.float16, torch.bfloat16)
    kept = rest.pop("dtype", value.dtype)
    # The sum of a mean that fits a narrow type may not fit it.
    total = value._local.sum(dim=dims, keepdim=keepdim, dtype=torch.float32 if narrow else kept)
    mean = finish(context, value, total, dims, keepdim) / math.prod(value.shape[d] for d in dims)
    return mean.to(kept)


def finish(
    context: Context, value: GlobalTensor, local: torch.Tensor, dims: tuple[int, ...], keepdim: bool
) -> Any:
    """Return a replicated value if the batch was reduced, else a global tensor."""
    layout = value._layout
    if layout.dim in dims:
        return sum_ranks(context, local)
    kept = layout.dim if keepdim else layout.dim - sum(d < layout.dim for d in set(dims))
    return rewrap(value, local, layout.at(kept))

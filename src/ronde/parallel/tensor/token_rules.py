"""Rules for values with cut tokens: per-token operations, moves and draws.

They hold for any cut axis: over a context group's ranks, or between the cut products of a tensor group.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, Rule, cut, is_global
from ronde.tensor.layout import Layout
from ronde.tensor.rules import rowwise, shapes
from ronde.tensor.rules.common import enter, functions, is_sharded, rewrap
from ronde.tensor.shard import order_in_memory

__all__ = ["added", "by_token", "dropped", "looked_up", "normalized", "token_rules"]

T = torch.Tensor


def token_rules() -> dict[Any, Rule]:
    """Return the rules that move or draw entries, for any cut axis."""
    table: dict[Any, Rule] = {F.dropout: dropout, F.multi_head_attention_forward: by_its_own_body}
    named: list[tuple[str, Rule]] = [
        ("split", split),
        ("chunk", chunk),
        ("unbind", unbind),
        ("unflatten", unflatten),
        ("expand", expand),
        ("cat", join),
        ("concat", join),
        ("view_as_complex", along_last),
        ("view_as_real", along_last),
        ("new_empty", new_empty),
    ]
    for name, rule in named:
        table.update(dict.fromkeys(functions([name]), rule))
    return table


def by_token(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply `x [..., in]` by a whole matrix."""
    x, others = args[0] if args else None, [*args[1:], *kwargs.values()]
    if (
        not is_sharded(x, context)
        or x._layout.dim == x.dim() - 1
        or any(is_global(each, context) for each in others)
    ):
        return NotImplemented
    if func is not F.linear and (len(others) != 1 or others[0].dim() != 2):
        return NotImplemented
    rest = [_entered(context, each) for each in args[1:]]
    named = {name: _entered(context, each) for name, each in kwargs.items()}
    return rewrap(x, func(x._local, *rest, **named), x._layout)


def normalized(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize `x` over its last axes, excluding the sequence."""
    x = args[0] if args else None
    shape = kwargs.get("normalized_shape", args[1] if len(args) > 1 else None)
    if not is_sharded(x, context) or shape is None or x._layout.dim >= x.dim() - len(shape):
        return NotImplemented
    rest = [_entered(context, each) for each in args[1:]]
    named = {name: _entered(context, each) for name, each in kwargs.items()}
    return rewrap(x, func(x._local, *rest, **named), x._layout)


def looked_up(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Look up rows of a whole table, for tokens."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = dict(zip(names, args, strict=False)) | kwargs
    ids, weight = given.pop("input"), given.pop("weight")
    # Frequency is that of the whole batch. A norm is written to the table, by each rank its own.
    if given.get("max_norm") is not None or given.get("scale_grad_by_freq") or given.get("sparse"):
        return NotImplemented
    if not is_sharded(ids, context) or is_global(weight, context):
        return NotImplemented
    return rewrap(ids, func(ids._local, enter(context, weight), **given), ids._layout)


def added(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply `x [n, in]` by `weight [in, out]`, and add `bias [out]`.

    Hugging Face's `Conv1D` calls it so.
    """
    if len(args) != 3 or kwargs:
        return NotImplemented
    bias, x, weight = args
    if not is_sharded(x, context) or x._layout.dim != 0 or bias.dim() != 1 or is_global(weight, context):
        return NotImplemented
    return rewrap(x, func(enter(context, bias), x._local, enter(context, weight)), x._layout)


def _entered(context: Context, value: Any) -> Any:
    return enter(context, value) if isinstance(value, torch.Tensor) else value


def dropout(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Apply dropout; each rank keeps its part of one device's draws."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    value, p = given["input"], float(given.get("p", 0.5))
    if not is_sharded(value, context) or given.get("inplace") or value.device.type != "cpu" or not 0 <= p < 1:
        return NotImplemented
    assert value._local is not None
    if not given.get("training", True) or not p:
        return value
    return rewrap(value, dropped(value, value._local, value._layout, p), value._layout)


def dropped(like: GlobalTensor, own: torch.Tensor, layout: Layout, p: float) -> torch.Tensor:
    """Apply dropout to this rank's part.

    The numbers are drawn for the whole value, in its memory order, and this rank's part of them is used.
    """
    order = order_in_memory(own)
    shape = layout.global_shape(own.shape)
    noise = torch.empty([shape[dim] for dim in order], dtype=own.dtype, device=own.device)
    noise = noise.permute([order.index(dim) for dim in range(own.dim())]).bernoulli_(1 - p)
    return own * layout.take(noise, like._context.rank).div(1 - p)


def split(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Split a tensor: stacked matrices along the cut axis, anything along others."""
    given = dict(zip(("value", "sizes", "dim"), args, strict=False)) | kwargs
    value, dim = given.get("value"), given.get("dim", 0)
    sizes = next(
        (given[name] for name in ("sizes", "split_size", "split_size_or_sections") if name in given), None
    )
    if not is_sharded(value, context) or not isinstance(dim, int) or sizes is None:
        return NotImplemented
    assert value._local is not None
    layout, place = value._layout, dim % value.dim()
    if place != layout.dim:
        return rewrap(value, torch.split(value._local, sizes, place), layout)
    if isinstance(sizes, int):
        sizes = [sizes] * (layout.size // sizes) if layout.size % sizes == 0 else []
    unit = layout.size // layout.outer
    if sum(sizes) != layout.size or any(size % unit or not size for size in sizes):
        return NotImplemented
    pieces = torch.split(
        value._local, [size // unit * layout.local_size(0) // layout.outer for size in sizes], place
    )
    return tuple(
        rewrap(value, piece, dataclasses.replace(layout, outer=size // unit))
        for piece, size in zip(pieces, sizes, strict=True)
    )


def chunk(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("input", "chunks", "dim"), args, strict=False)) | kwargs
    value, count, dim = given.get("input"), given.get("chunks"), given.get("dim", 0)
    if not is_sharded(value, context) or not isinstance(count, int) or value.shape[dim] % count:
        return NotImplemented
    return split(context, torch.split, (value, value.shape[dim] // count, dim), {})


def unbind(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    value, dim = given.get("input"), given.get("dim", 0)
    if not is_sharded(value, context):
        return NotImplemented
    layout, place = value._layout, dim % value.dim()
    if place == layout.dim:
        return NotImplemented
    assert value._local is not None
    return rewrap(value, value._local.unbind(place), layout.at(layout.dim - (place < layout.dim)))


def unflatten(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("input", "dim", "sizes"), args, strict=False)) | kwargs
    value, dim, sizes = given.get("input"), given.get("dim"), given.get("sizes")
    if not is_sharded(value, context) or not isinstance(dim, int) or sizes is None or len(args) > 3:
        return NotImplemented
    place, shape = dim % value.dim(), list(value.shape)
    known = math.prod(size for size in sizes if size != -1)
    whole = [shape[place] // known if size == -1 else size for size in sizes]
    return shapes.reshape(context, T.reshape, (value, [*shape[:place], *whole, *shape[place + 1 :]]), {})


def expand(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    value, *sizes = args
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = list(sizes[0])
    if not is_sharded(value, context) or kwargs or not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    layout = value._layout.at(value._layout.dim - value.dim())
    if sizes[layout.dim] not in (-1, layout.size):
        return NotImplemented
    sizes[layout.dim] = -1
    assert value._local is not None
    return rewrap(value, value._local.expand(*sizes), layout)


def join(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Concatenate tensors, cutting whole ones like the others.

    An empty one, such as a cache's first, adds nothing.
    """
    given = dict(zip(("tensors", "dim"), args, strict=False)) | kwargs
    tensors, dim = given.pop("tensors", None), given.get("dim", 0)
    if not isinstance(tensors, (tuple, list)) or set(given) - {"dim"}:
        return NotImplemented
    some = [each for each in tensors if is_sharded(each, context) or tuple(each.shape) != (0,)]
    like = next((each for each in some if is_sharded(each, context)), None)
    if like is not None and len(some) > 1 and dim % like.dim() != like._layout.dim:
        some = [_cut_as(context, each, like) for each in some]
    return rowwise.join(context, func, (some, dim), {})


def _cut_as(context: Context, value: Any, like: GlobalTensor) -> Any:
    layout = like._layout
    if is_global(value, context) or value.dim() != like.dim() or value.shape[layout.dim] != layout.size:
        return value
    return rewrap(like, cut(context, value, layout), layout)


def along_last(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """View pairs at the end as complex numbers, or the reverse."""
    value = args[0] if args else None
    if kwargs or not is_sharded(value, context) or value._layout.dim == value.dim() - 1:
        return NotImplemented
    assert value._local is not None
    return rewrap(value, func(value._local), value._layout)


def new_empty(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Allocate memory of the same sizes up to the axis that is cut."""
    value, *sizes = args
    sizes = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not is_sharded(value, context) or not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    layout = value._layout
    if sizes[: layout.dim + 1] != list(value.shape[: layout.dim + 1]):
        return NotImplemented
    assert value._local is not None
    sizes[layout.dim] = layout.local_size(context.rank)
    return rewrap(value, value._local.new_empty(sizes, **kwargs), layout)


def by_its_own_body(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a composite function in Python, with rules for its operations."""
    return _body(func)(*args, **kwargs)


def _body(func: Any) -> Callable[..., Any]:
    """Return the function without its `has_torch_function` check."""
    plain: Any = types.FunctionType(
        func.__code__,
        {**func.__globals__, "has_torch_function": lambda _: False},
        func.__name__,
        func.__defaults__,
    )
    plain.__kwdefaults__ = func.__kwdefaults__
    return plain

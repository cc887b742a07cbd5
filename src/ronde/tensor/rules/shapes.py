"""Changes of shape that keep the rows of the batch together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, Rule
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import functions, is_sharded, rewrap

__all__ = ["reshaped_layout", "rules"]


def rules() -> dict[Any, Rule]:
    table: dict[Any, Rule] = {
        torch.Tensor.__getitem__: index,
        torch.Tensor.view_as: view_as,
        torch.Tensor.reshape_as: view_as,
    }
    for name, rule in (
        ("view", reshape),
        ("reshape", reshape),
        ("flatten", flatten),
        ("unsqueeze", unsqueeze),
        ("squeeze", squeeze),
        ("permute", permute),
        ("transpose", transpose),
        ("swapaxes", transpose),
        ("swapdims", transpose),
        ("t", transposed),
    ):
        for function in functions([name]):
            table[function] = rule
    return table


def reshaped_layout(shape: Sequence[int], layout: Layout, target: Sequence[int]) -> Layout | None:
    """Return the layout of `shape` viewed as `target`, or None if rows are torn.

    The batch runs as `outer_total * rows * inner_total` through memory; it survives in the first target
    dimension that holds all of `rows` at that place.
    """
    outer_total = math.prod(shape[: layout.dim]) * layout.outer
    before = 1
    for dim, size in enumerate(target):
        if before and outer_total % before == 0:
            outer = outer_total // before
            if outer * layout.rows and size % (outer * layout.rows) == 0:
                inner = size // (outer * layout.rows)
                return dataclasses.replace(layout, dim=dim, outer=outer, inner=inner)
        before *= size
    return None


def _resolve(shape: Sequence[int], target: Sequence[int]) -> list[int] | None:
    """Return `target` with its -1 filled in, or None if it does not fit.

    torch reports that itself.
    """
    total, known = math.prod(shape), math.prod(size for size in target if size != -1)
    if list(target).count(-1) == 1 and known and total % known == 0:
        return [total // known if size == -1 else size for size in target]
    return list(target) if known == total and -1 not in target else None


def _viewed(value: GlobalTensor, func: Callable[..., Any], target: Sequence[int]) -> Any:
    whole = _resolve(value.shape, target)
    if whole is None:
        return NotImplemented
    layout = reshaped_layout(value.shape, value._layout, whole)
    if layout is None:
        return NotImplemented
    whole[layout.dim] = layout.local_size(value._context.rank)
    return rewrap(value, func(value._local, whole), layout)


def _sizes(arguments: tuple[Any, ...]) -> list[int] | None:
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list, torch.Size)):
        arguments = tuple(arguments[0])
    if not arguments or not all(isinstance(size, int) for size in arguments):
        return None
    return [int(size) for size in arguments]


def reshape(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    target = _sizes((kwargs["shape"],) if "shape" in kwargs else args[1:])
    if target is None or not is_sharded(args[0], context):
        return NotImplemented
    return _viewed(args[0], func, target)


def view_as(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if not is_sharded(args[0], context):
        return NotImplemented
    return _viewed(args[0], torch.Tensor.reshape, list(args[1].shape))


def flatten(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if not is_sharded(args[0], context) or not args[0].dim():
        return NotImplemented
    shape = list(args[0].shape)
    start = kwargs.get("start_dim", args[1] if len(args) > 1 else 0) % len(shape)
    end = kwargs.get("end_dim", args[2] if len(args) > 2 else -1) % len(shape)
    if start > end:
        return NotImplemented
    return _viewed(
        args[0], torch.Tensor.reshape, [*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]]
    )


def unsqueeze(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not is_sharded(args[0], context) or not isinstance(dim, int):
        return NotImplemented
    value: GlobalTensor = args[0]
    place = dim % (value.dim() + 1)
    layout = value._layout.at(value._layout.dim + (place <= value._layout.dim))
    return rewrap(value, value._local.unsqueeze(place), layout)  # pyright: ignore[reportOptionalMemberAccess]


def squeeze(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if not is_sharded(args[0], context):
        return NotImplemented
    value: GlobalTensor = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    asked = (
        range(value.dim())
        if dim is None
        else [d % value.dim() for d in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    )
    gone = tuple(d for d in asked if value.shape[d] == 1)
    if value._layout.dim in gone:
        return NotImplemented
    layout = value._layout.at(value._layout.dim - sum(d < value._layout.dim for d in gone))
    assert value._local is not None
    return rewrap(value, value._local.squeeze(gone), layout)


def permute(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    order = _sizes((kwargs["dims"],) if "dims" in kwargs else args[1:])
    if not is_sharded(args[0], context) or order is None or len(order) != args[0].dim():
        return NotImplemented
    value: GlobalTensor = args[0]
    places = [d % value.dim() for d in order]
    assert value._local is not None
    return rewrap(value, value._local.permute(places), value._layout.at(places.index(value._layout.dim)))


def transpose(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) != 3 or not is_sharded(args[0], context):
        return NotImplemented
    places = list(range(args[0].dim()))
    first, second = args[1] % len(places), args[2] % len(places)
    places[first], places[second] = places[second], places[first]
    return permute(context, torch.Tensor.permute, (args[0], *places), {})


def transposed(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    return transpose(context, func, (args[0], 0, 1), {}) if args[0].dim() == 2 else NotImplemented


def index(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Index without touching the batch dimension: integers, slices, None and `...` elsewhere."""
    value, key = args
    found = split_key(context, value, key)
    if found is None:
        return NotImplemented
    assert value._local is not None
    items, place, result = found
    item = items[place]
    # `x[0:]` and `x[:len(x)]` take all of it too.
    size = value.shape[value._layout.dim]
    if not isinstance(item, slice) or item.indices(size) != (0, size, 1):
        return NotImplemented
    return rewrap(value, value._local[tuple(items)], value._layout.at(result))


def split_key(context: Context, value: Any, key: Any) -> tuple[list[Any], int, int] | None:
    """Expand an index to one item per existing and per new axis.

    Returns:
        The items, the position of the cut axis among them, and that axis in the result, if it stays. None
        where an item is a tensor or a list, or there are too many.
    """
    if not is_sharded(value, context):
        return None
    items = list(key) if isinstance(key, tuple) else [key]
    if any(
        not isinstance(item, (int, slice, type(None), type(...))) or isinstance(item, bool) for item in items
    ):
        return None
    used = sum(item is not None and item is not ... for item in items)
    missing = value.dim() - used
    if missing < 0 or items.count(...) > 1:
        return None
    place = items.index(...) if ... in items else len(items)
    items[place : place + 1] = [slice(None)] * missing
    source, result = 0, 0
    for place, item in enumerate(items):
        if item is None:
            result += 1
            continue
        if source == value._layout.dim:
            return items, place, result
        source += 1
        result += not isinstance(item, int)
    return None

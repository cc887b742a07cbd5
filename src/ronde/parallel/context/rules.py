"""Rules for sequences cut over ranks: each token by itself, and attention.

Queries stay where their tokens are, keys and values are gathered (the all-gather form of context parallelism,
Dubey et al. 2024, "The Llama 3 Herd of Models"). With a causal mask a rank uses the keys up to its last one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ronde.parallel.context.ring_attention import Ring, TokensOfAll, attend
from ronde.parallel.tensor.rules import scores
from ronde.parallel.tensor.token_rules import added, by_token, dropped, looked_up, normalized, token_rules
from ronde.plan.mesh import ContextAttention
from ronde.tensor import rules
from ronde.tensor.context import Context
from ronde.tensor.edges import Share, gather_data, scatter_data
from ronde.tensor.global_tensor import GlobalTensor, Rule, cut, gathered, is_global, localize, of_context
from ronde.tensor.layout import Layout, joined
from ronde.tensor.rules import elementwise, shapes
from ronde.tensor.rules.common import (
    enter,
    functions,
    is_sharded,
    local_operand,
    rewrap,
    same_layout,
    sum_ranks,
)
from ronde.tensor.rules.shapes import split_key
from ronde.tensor.shard import innermost, order_in_memory
from ronde.tensor.views import line

__all__ = ["is_mask", "sequence_rules"]


def sequence_rules(way: ContextAttention) -> dict[Any, Rule]:
    """Return every rule, keyed by the function that `__torch_function__` receives.

    Args:
        way: algorithm by which ranks attend to each other's keys.
    """
    table = rules.table() | token_rules()
    by_element = [function for function, rule in table.items() if rule is elementwise.apply]
    table.update(dict.fromkeys(by_element, beside_masks))
    table.update(dict.fromkeys((_in_place(by_element) | {torch.Tensor.copy_}) - table.keys(), changed))
    table.update(dict.fromkeys(functions(["scatter", "scatter_"]), scattered))
    table.update(dict.fromkeys(functions(["matmul", "__matmul__", "bmm"]), multiplied))
    table[torch.Tensor.__getitem__] = one_token
    table[torch.einsum] = summed_over_letters
    table[F.linear] = by_token
    table[F.layer_norm] = normalized
    table[F.rms_norm] = normalized
    table[F.embedding] = looked_up
    table.update(dict.fromkeys(functions(["addmm"]), added))
    table[F.scaled_dot_product_attention] = functools.partial(attention, way)
    return table


def beside_masks(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Apply an element-wise operation.

    For scores `[..., n, n]` and a mask of keys `[..., 1, n]` the mask is gathered.
    """
    given = list(of_context(context, (args, kwargs)))
    if len(given) > 1 and same_layout(given) is None:
        args = tuple(gathered(each) if is_mask(context, each) else each for each in args)
    return elementwise.apply(context, func, args, kwargs)


def _in_place(by_element: Iterable[Any]) -> set[Any]:
    """Return the in-place functions: `x.add_(y)`, `x += y`."""
    names = {each.__name__ for each in by_element if hasattr(each, "__name__")}
    found = {f"__i{name[2:]}" if name.startswith("__") else f"{name}_" for name in names}
    return {getattr(torch.Tensor, name) for name in found if hasattr(torch.Tensor, name)}


def changed(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Change this rank's tokens element by element, in place."""
    return elementwise.apply(context, func, args, kwargs) if _may_change(context, args) else NotImplemented


def _may_change(context: Context, args: Any) -> bool:
    # Outside of models the script may hold the whole value.
    value = args[0] if args and context.on_whole else None
    # A write to a copy would not change the value.
    if not is_sharded(value, context) or any(each in context.copied_from for each in line(value)):
        return False
    while value is not None and value._full is None:
        origin = value._origin
        if origin is None:
            return True
        value = None if origin.leaves_graph else origin.base()
    return False


def scattered(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Scatter numbers or values, along another axis than the sequence."""
    in_place = func.__name__.endswith("_")
    if len(args) != 4 or kwargs or not is_sharded(args[0], context):
        return NotImplemented
    value, dim, places, source = args
    given = [each for each in (places, source) if isinstance(each, torch.Tensor)]
    if not all(is_sharded(each, context) and each._layout == value._layout for each in given):
        return NotImplemented
    if dim % value.dim() == value._layout.dim or (in_place and not _may_change(context, args)):
        return NotImplemented
    made = func(value._local, dim, *map(localize, (places, source)))
    return value if in_place else rewrap(value, made, value._layout)


def is_mask(context: Context, value: Any) -> bool:
    """Return whether a value is small: a mask, labels, few scores for each token."""
    if not is_sharded(value, context):
        return False
    dim = value._layout.dim
    tokens = value.shape[dim] * (value.shape[0 if dim else 1] if value.dim() > 1 else 1)
    return value.numel() <= _FEW * tokens or not value.is_floating_point()


_FEW = 8


def one_token(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Index a sequence, like rows.

    A single entry of each sequence, `[:, 0]`, `[:, -1:]` or `[:, [-1]]`, is shared by its rank with the
    others.
    """
    made = shapes.index(context, func, args, kwargs)
    # Code of the script outside of models may write to an entry, which must be a view there.
    found = split_key(context, args[0], _with_slices(args[1])) if _is_left(made, context) else None
    if found is None:
        return made
    value, (items, place, result) = args[0], found
    layout, entry = value._layout, items[place]
    keeps = isinstance(entry, slice)
    entries = range(layout.size)[entry if keeps else slice(entry, entry + 1 or None)]
    if len(entries) != 1 or (layout.outer, layout.inner) != (1, 1):
        return NotImplemented
    mine = layout.place(entries[0], context.rank)
    items[place] = slice(0, 0) if mine is None else slice(mine, mine + 1)
    own = value._local[tuple(items)]
    made = sum_ranks(context, own.sum(result, keepdim=keeps)).to(own.dtype)  # sums of a mask are integers
    for each in line(value):
        context.copied_from.set(each, True)
    context.on_copy(made)
    return made


def _is_left(made: Any, context: Context) -> bool:
    return made is NotImplemented and context.on_whole is not None


def _with_slices(key: Any) -> Any:
    """Replace lists of one entry by slices; beside integers lists index another way."""
    items = list(key) if isinstance(key, tuple) else [key]
    if any(isinstance(item, int) for item in items):
        return key
    one = [isinstance(item, list) and [type(each) for each in item] == [int] for item in items]
    return tuple(
        slice(item[0], item[0] + 1 or None) if single else item
        for item, single in zip(items, one, strict=True)
    )


def multiplied(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply `[..., n, width]` by a whole matrix, or by an operand of attention.

    The operand of attention is `[..., width, n]` or `[..., n, width]`.
    """
    if len(args) != 2 or kwargs or not is_sharded(args[0], context):
        return NotImplemented
    x, other = args
    if not is_global(other, context) and other.dim() == 2:
        return by_token(context, func, args, kwargs)
    if (x._layout.dim, x._layout.outer, x._layout.inner) != (x.dim() - 2, 1, 1) or other.dim() < 2:
        return NotImplemented
    whole = (
        _whole(context, other, other.dim() - 1) if _is_cut_last(context, other) else _whole(context, other)
    )
    if whole is None:
        return NotImplemented
    made = func(x._local, whole)
    return rewrap(x, made, x._layout.at(made.dim() - 2))


def _is_cut_last(context: Context, value: Any) -> bool:
    return is_sharded(value, context) and value._layout.dim == value.dim() - 1


def summed_over_letters(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Apply `einsum` to two operands, with the first one's tokens in the result.

    For instance `bqd,bkd->bqk`.
    """
    if len(args) != 3 or kwargs or not isinstance(args[0], str) or not is_sharded(args[1], context):
        return NotImplemented
    equation, x, other = args
    given, arrow, result = equation.replace(" ", "").partition("->")
    letters = given.split(",")
    if not arrow or "." in equation or len(letters) != 2 or (x._layout.outer, x._layout.inner) != (1, 1):
        return NotImplemented
    cut_letter = letters[0][x._layout.dim]
    if cut_letter not in result or cut_letter in letters[1]:
        return NotImplemented
    whole = _whole(context, other, other._layout.dim if is_sharded(other, context) else None)
    if whole is None:
        return NotImplemented
    made = func(equation, x._local, whole)
    return rewrap(x, made, x._layout.at(result.index(cut_letter)))


def attention(
    way: ContextAttention, context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Apply `scaled_dot_product_attention` to this rank's queries. Operands are `[..., n, width]`."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (given[name] for name in names[:3])
    if not is_sharded(query, context):
        return NotImplemented
    own, layout = localize(query), query._layout
    if (layout.dim, layout.outer, layout.inner) != (query.dim() - 2, 1, 1):
        return NotImplemented
    dropout_p = float(given.get("dropout_p") or 0.0)
    if dropout_p and query.device.type != "cpu":
        return NotImplemented
    mask, causal = _own_mask(context, given.get("attn_mask"), layout), bool(given.get("is_causal"))
    if mask is not None and causal:
        return func(own, own, own, mask, is_causal=True)  # torch raises its own error
    heads = bool(given.get("enable_gqa")) or query.shape[-3:-2] == key.shape[-3:-2]
    if heads and _goes_round(context, way, query, key, value, mask):
        made = _by_ring(context, query, key, value, mask, dropout_p, causal, _scale(given))
        return rewrap(query, made, layout)
    if heads and causal and not dropout_p and _gathers_again(context, query, key, value):
        ring = _all_of_them(context, layout, key, _scale(given))
        return rewrap(query, _on_heads(ring, own, localize(key), localize(value)), layout)
    keys, values = (_whole(context, each) for each in (key, value))
    if keys is None or values is None:
        return NotImplemented
    ranges, count = layout.ranges(context.rank), keys.shape[-2]
    if dropout_p:
        times = own.shape[-3] // keys.shape[-3] if given.get("enable_gqa") else 1
        keys, values = (each.repeat_interleave(times, -3) if times > 1 else each for each in (keys, values))
        if causal:
            # Later keys are not on this rank; but dropout is drawn for all of them.
            mask = torch.cat([_seen(first, last, count, own.device) for first, last in ranges])
        weights = scores(own, keys, mask, False, given.get("scale"))
        made = dropped(query, weights, layout.at(own.dim() - 2), dropout_p) @ values
        return rewrap(query, made, layout)
    options = {name: given[name] for name in ("scale", "enable_gqa") if given.get(name) is not None}
    if not causal:
        return rewrap(query, func(own, keys, values, mask, 0.0, **options), layout)
    if heads and own.device.type == "cpu" and _fit(own, keys, values):
        # Without a full mask, which would be saved for backward.
        pieces = [_pieces(ranges, count)]
        ring = Ring(comm=None, queries=ranges, keys=pieces, causal=True, scale=_scale(given))
        return rewrap(query, _on_heads(ring, own, keys, values), layout)
    parts: list[torch.Tensor] = []
    for rows, (first, last) in zip(own.split([b - a for a, b in ranges], -2), ranges, strict=True):
        used = slice(0, min(last, count))
        seen = _seen(first, last, used.stop, own.device)
        parts.append(func(rows, keys[..., used, :], values[..., used, :], seen, 0.0, **options))
    made = parts[0] if len(parts) == 1 else joined(parts, own.dim() - 2, order_in_memory(parts[0]))
    return rewrap(query, made, layout)


def _pieces(ranges: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return ranges of all `count` keys that begin and end where queries do."""
    edges = sorted({0, count, *(min(edge, count) for piece in ranges for edge in piece)})
    return list(itertools.pairwise(edges))


def _scale(given: Mapping[str, Any]) -> float:
    asked = given.get("scale")
    return 1 / math.sqrt(given["query"].shape[-1]) if asked is None else asked


def _seen(first: int, last: int, keys: int, device: torch.device) -> torch.Tensor:
    """Return a causal mask for queries from `first` to `last`."""
    return torch.ones(last - first, keys, dtype=torch.bool, device=device).tril(first)


# Bytes of keys and values that are gathered on any number of ranks, and kept for backward: less memory is not
# worth more messages.
_LITTLE = 1 << 20
# A ring holds three blocks of keys and values: its own, those in use and those under way.
_BLOCKS = 3


def _goes_round(
    context: Context, way: ContextAttention, query: GlobalTensor, key: Any, value: Any, mask: Any
) -> bool:
    """Return whether keys and values travel around a ring.

    Under `auto` they do where that takes less memory.
    """
    if way == "gather" or not (is_sharded(key, context) and is_sharded(value, context)):
        return False
    layout = key._layout
    if not _are_alike(query, key, value):
        return False
    if layout.rows < layout.world_size or (mask is not None and mask.requires_grad):
        return False
    return way == "ring" or (layout.world_size > _BLOCKS and _nbytes(key, value) >= _LITTLE)


def _gathers_again(context: Context, query: GlobalTensor, key: Any, value: Any) -> bool:
    """Return whether keys and values are gathered again for backward, not kept."""
    if query.device.type != "cpu" or not (is_sharded(key, context) and is_sharded(value, context)):
        return False
    return _are_alike(query, key, value) and _nbytes(key, value) >= _LITTLE


def _are_alike(query: GlobalTensor, key: GlobalTensor, value: GlobalTensor) -> bool:
    """Return whether keys and values are cut alike along tokens, and fit to queries."""
    layout = key._layout
    if value._layout != layout or (layout.dim, layout.outer, layout.inner) != (key.dim() - 2, 1, 1):
        return False
    return _fit(localize(query), localize(key), localize(value))


def _nbytes(key: GlobalTensor, value: GlobalTensor) -> int:
    return (key.numel() + value.numel()) * key.element_size()


def _all_of_them(context: Context, queries: Layout, key: GlobalTensor, scale: float) -> Ring:
    """Return the ring of a rank that gathers all keys, for causal attention."""
    ranges, layout = queries.ranges(context.rank), key._layout
    tokens = TokensOfAll(
        lambda own: gather_data(context, own, layout), lambda whole: scatter_data(context, whole, layout)
    )
    pieces = [_pieces(ranges, layout.size)]
    return Ring(comm=None, queries=ranges, keys=pieces, causal=True, scale=scale, tokens=tokens)


def _fit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether operands fit without broadcasting.

    They are plain, or have heads that an inner group cuts equally.
    """
    alike = query.shape[:-3] == key.shape[:-3] == value.shape[:-3] and key.shape[:-1] == value.shape[:-1]
    if not alike or query.dim() < 3 or not query.dtype == key.dtype == value.dtype:
        return False
    operands = query, key, value
    if not isinstance(query, GlobalTensor):
        return not any(isinstance(each, GlobalTensor) for each in operands)
    return all(
        is_sharded(each, query._context)
        and not isinstance(each._local, GlobalTensor)
        and (each._layout.dim, each._layout.outer) == (each.dim() - 3, 1)
        and each._layout.rows == query._layout.rows
        for each in operands
    )


def _by_ring(
    context: Context,
    query: GlobalTensor,
    key: GlobalTensor,
    value: GlobalTensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float,
) -> torch.Tensor:
    layout, keys = query._layout, key._layout
    kept = None
    if dropout_p:
        # Drawn as on one device, one byte for each; other ranks' draws are freed at once.
        shape = (*query.shape[:-1], key.shape[-2])
        drawn = torch.empty(shape, dtype=torch.bool, device=query.device).bernoulli_(1 - dropout_p)
        kept = layout.take(drawn, context.rank).clone()
    ring = Ring(
        comm=context.comm,
        queries=layout.ranges(context.rank),
        keys=[keys.ranges(rank) for rank in range(context.world_size)],
        causal=causal,
        scale=scale,
        dropout_p=dropout_p,
    )
    return _on_heads(ring, localize(query), localize(key), localize(value), mask, kept)


def _on_heads(
    ring: Ring,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend with this rank's heads.

    These are the heads within an inner group that cuts them, or all.
    """
    if not isinstance(query, GlobalTensor):
        return attend(ring, query, key, value, mask, kept)
    heads = query._layout.at(-3)
    mask, kept = (local_operand(query._context, each, heads) for each in (mask, kept))
    made = attend(ring, localize(query), localize(key), localize(value), mask, kept)
    return rewrap(query, made, heads)


def _own_mask(context: Context, mask: Any, layout: Layout) -> torch.Tensor | None:
    """Return the rows of a mask for this rank's queries. A mask with one row for all is returned whole."""
    if mask is None:
        return None
    whole = gathered(mask) if is_global(mask, context) else mask
    if whole.dim() < 2 or whole.shape[-2] != layout.size:
        return enter(context, whole)
    return cut(context, whole, layout.at(whole.dim() - 2))


def _whole(context: Context, operand: Any, dim: int | None = None) -> torch.Tensor | None:
    """Gather keys or values of all tokens; None if cut otherwise.

    Args:
        dim: dimension along which they may be cut, by default the last but one.
    """
    if not is_sharded(operand, context):
        return enter(context, gathered(operand) if is_global(operand, context) else operand)
    layout, dim = operand._layout, operand.dim() - 2 if dim is None else dim
    if (layout.dim, layout.outer, layout.inner) != (dim, 1, 1):
        return None
    return innermost(lambda rows: Share.apply(rows, context, layout), localize(operand), layout.dim)

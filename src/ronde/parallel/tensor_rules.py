"""Operations on what is cut over the ranks of a tensor group: weights, and activations between them.

The rules of `ronde.tensor.rules` know element-wise operations, reductions and changes of shape; these are
what a model has beside them (Shoeybi et al. 2019, "Megatron-LM"). An operation without a rule gathers: a
model that does something else between two matrices is right, and slower.
"""

from __future__ import annotations

import dataclasses
import math
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ronde.parallel.vocabulary import cross_entropy, embedding
from ronde.patching.torch_internals import safe_softmax
from ronde.tensor.context import Context, Entered
from ronde.tensor.edges import SumRanks
from ronde.tensor.global_tensor import GlobalTensor, Rule, cut, gathered, is_global
from ronde.tensor.layout import Layout
from ronde.tensor.rules import elementwise, reductions, rowwise, shapes
from ronde.tensor.rules.common import enter, functions, is_sharded, local_operand, rewrap
from ronde.tensor.shard import order_in_memory

__all__ = ["dropped", "scores", "tensor_rules", "token_rules"]

T = torch.Tensor


def tensor_rules() -> dict[Any, Rule]:
    """Every rule, keyed by the function that `__torch_function__` is told."""
    table: dict[Any, Rule] = {}
    for rules in (elementwise, reductions, rowwise, shapes):
        table.update(rules.rules())
    table.update(token_rules())
    named: list[tuple[str, Rule]] = [
        ("addmm", addmm),
        ("matmul", matmul),
        ("__matmul__", matmul),
        ("bmm", matmul),
        ("baddbmm", baddbmm),
    ]
    for name, rule in named:
        table.update(dict.fromkeys(functions([name]), rule))
    table[F.linear] = linear
    table[F.embedding] = embedding
    table[F.cross_entropy] = cross_entropy
    table[F.scaled_dot_product_attention] = attention
    return table


def token_rules() -> dict[Any, Rule]:
    """What moves or draws entries, along whatever axis a tensor is cut."""
    table: dict[Any, Rule] = {F.dropout: dropout, F.multi_head_attention_forward: by_its_own_body}
    named: list[tuple[str, Rule]] = [
        ("split", split),
        ("chunk", chunk),
        ("unbind", unbind),
        ("unflatten", unflatten),
        ("expand", expand),
        ("cat", join),
        ("concat", join),
    ]
    for name, rule in named:
        table.update(dict.fromkeys(functions([name]), rule))
    return table


def linear(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """`x [..., in]`, `weight [out, in]`, `bias [out]`."""
    given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if not is_sharded(weight, context) or weight.dim() != 2:
        return NotImplemented
    if weight._layout.dim == 0:
        return _column(context, x, weight, bias, F.linear)
    return _row(context, x, weight, bias, F.linear)


def addmm(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """`bias [out]`, `x [n, in]`, `weight [in, out]`, as Hugging Face's `Conv1D` has it."""
    if len(args) != 3 or kwargs:
        return NotImplemented
    bias, x, weight = args
    if not is_sharded(weight, context) or bias.dim() != 1:
        return NotImplemented
    if weight._layout.dim == 1:
        return _column(context, x, weight, bias, lambda own, matrix, shift: torch.addmm(shift, own, matrix))
    return _row(context, x, weight, bias, torch.mm)


def _column(
    context: Context, x: Any, weight: GlobalTensor, bias: Any, product: Callable[..., torch.Tensor]
) -> GlobalTensor:
    """Each rank has some columns of the result."""
    layout = weight._layout.at(-1)
    shift = () if bias is None else (local_operand(context, bias, layout),)
    return rewrap(weight, product(_entered(context, gathered(x)), weight._local, *shift), layout)


def _entered(context: Context, x: torch.Tensor) -> torch.Tensor:
    """Enter `x`; layers that follow one another with the same `x` share one sum of its gradient."""
    last = context.entered
    if last is not None and last.given() is x and last.version == x._version and torch.is_grad_enabled():
        return last.made
    made = enter(context, x)
    context.entered = None if made is x else Entered(weakref.ref(x), x._version, made)
    return made


def _row(
    context: Context, x: Any, weight: GlobalTensor, bias: Any, product: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Each rank has a summand of the result."""
    wanted = weight._layout.at(x.dim() - 1)
    if is_sharded(x, context) and x._layout == wanted:
        own = x._local
    else:
        own = cut(context, gathered(x), wanted)
    total: Any = SumRanks.apply(product(own, weight._local), context)
    return total if bias is None else total + gathered(bias)


def matmul(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Products of matrices, each by itself on some rank; or of a matrix that is cut along the inner axis."""
    if len(args) != 2 or kwargs:
        return NotImplemented
    left, right = args
    if left.dim() < 2 or right.dim() < 2:
        return NotImplemented
    layout = _of_matrices(context, [left, right])
    if layout is not None:
        return _by_matrices(context, torch.matmul, (left, right), layout)
    if not is_sharded(right, context) or right.dim() != 2:
        return NotImplemented
    if right._layout.dim == 1:
        return _column(context, left, right, None, torch.matmul)
    return _row(context, left, right, None, torch.matmul)


def baddbmm(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """`input + left @ right`, each matrix by itself."""
    if len(args) != 3 or kwargs or args[0].dim() != 3:
        return NotImplemented
    layout = _of_matrices(context, args[1:])
    if layout is None or not _spans(args[0], layout):
        return NotImplemented
    return _by_matrices(context, torch.baddbmm, args, layout)


def _of_matrices(context: Context, operands: Sequence[Any]) -> Layout | None:
    """The cut of operands whose last two axes are matrices, counted from the end; None where there is none.

    Those that are not cut are broadcast over it, or as long.
    """
    found = [each._layout.at(each._layout.dim - each.dim()) for each in operands if is_sharded(each, context)]
    if not found or any(layout != found[0] for layout in found) or found[0].dim > -3:
        return None
    if any(is_global(each, context) and not is_sharded(each, context) for each in operands):
        return None
    return found[0] if all(_spans(each, found[0]) for each in operands) else None


def _spans(value: torch.Tensor, layout: Layout) -> bool:
    dim = value.dim() + layout.dim
    return dim < 0 or value.shape[dim] in (1, layout.size)


def _by_matrices(
    context: Context, func: Callable[..., torch.Tensor], operands: Sequence[Any], layout: Layout
) -> GlobalTensor:
    like = next(each for each in operands if is_sharded(each, context))
    return rewrap(like, func(*(local_operand(context, each, layout) for each in operands)), layout)


def attention(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """`scaled_dot_product_attention`, each head by itself: operands `[..., heads, n, width]`."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (given[name] for name in names[:3])
    mask = given.get("attn_mask")
    cuts = [
        each._layout.at(each._layout.dim - each.dim())
        for each in (query, key, value)
        if is_sharded(each, context)
    ]
    if not cuts or any(layout.dim != -3 or layout.outer != 1 for layout in cuts):
        return NotImplemented
    # Of grouped queries each group of heads has its own number.
    if any(each.shape[-3] % cuts[0].rows for each in (query, key, value)):
        return NotImplemented
    heads = [_heads(context, each) for each in (query, key, value)]
    whole = Layout(-3, cuts[0].rows, cuts[0].world_size, 1, query.shape[-3] // cuts[0].rows)
    if mask is not None:
        if not _spans(mask, whole):
            return NotImplemented
        mask = local_operand(context, mask, whole)
    dropout_p = float(given.get("dropout_p") or 0.0)
    options = {name: given[name] for name in ("scale", "enable_gqa") if given.get(name) is not None}
    causal = bool(given.get("is_causal"))
    like = next(each for each in (query, key, value) if is_sharded(each, context))
    if not dropout_p:
        own: tuple[Any, ...] = (*heads, mask, 0.0, causal)
        result = F.scaled_dot_product_attention(*own, **options)
        return rewrap(like, result, whole)
    if query.device.type != "cpu" or options.get("enable_gqa"):
        return NotImplemented
    weights = scores(heads[0], heads[1], mask, causal, options.get("scale"))
    kept = dropped(like, weights, whole.at(weights.dim() - 3), dropout_p)
    return rewrap(like, kept @ heads[2], whole)


def _heads(context: Context, value: Any) -> torch.Tensor:
    """This rank's heads."""
    if is_sharded(value, context):
        own = value._local
        assert own is not None
        return own
    degree = context.world_size
    return cut(
        context, gathered(value), Layout(value.dim() - 3, degree, degree, 1, value.shape[-3] // degree)
    )


def scores(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    """What attention is before its dropout: torch's own computation on the CPU, where that draws."""
    factor = math.sqrt(1 / math.sqrt(query.size(-1)) if scale is None else scale)
    found = (query * factor) @ (key * factor).transpose(-2, -1)
    if causal:
        length, width = found.shape[-2:]
        mask = torch.ones(length, width, dtype=torch.bool, device=found.device).tril()
    if mask is not None and mask.dtype is torch.bool:
        found = found.masked_fill(~mask, -math.inf)
    elif mask is not None:
        found = found + mask
    return safe_softmax(found, -1)


def dropout(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """What one device draws for the whole, of which each rank keeps its own."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    value, p = given["input"], float(given.get("p", 0.5))
    if not is_sharded(value, context) or given.get("inplace") or value.device.type != "cpu" or not 0 <= p < 1:
        return NotImplemented
    assert value._local is not None
    if not given.get("training", True) or not p:
        return value
    return rewrap(value, dropped(value, value._local, value._layout, p), value._layout)


def dropped(like: GlobalTensor, own: torch.Tensor, layout: Layout, p: float) -> torch.Tensor:
    """Dropout of this rank's part, by its part of the numbers for the whole, drawn as that lies in memory."""
    order = order_in_memory(own)
    shape = layout.global_shape(own.shape)
    noise = torch.empty([shape[dim] for dim in order], dtype=own.dtype, device=own.device)
    noise = noise.permute([order.index(dim) for dim in range(own.dim())]).bernoulli_(1 - p)
    return own * layout.take(noise, like._context.rank).div(1 - p)


def split(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Along the axis that is cut, matrices behind one another come apart; along others anything does."""
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
    """As of rows; what is empty, as a cache of keys before its first, adds nothing."""
    given = dict(zip(("tensors", "dim"), args, strict=False)) | kwargs
    tensors = given.pop("tensors", None)
    if not isinstance(tensors, (tuple, list)) or set(given) - {"dim"}:
        return NotImplemented
    some = [each for each in tensors if is_sharded(each, context) or tuple(each.shape) != (0,)]
    return rowwise.join(context, func, (some, given.get("dim", 0)), {})


def by_its_own_body(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """A function that torch has composed of others in Python: each of them is asked by itself."""
    return _body(func)(*args, **kwargs)


def _body(func: Any) -> Callable[..., Any]:
    """The function without its question whether somebody else carries it out."""
    plain: Any = types.FunctionType(
        func.__code__,
        {**func.__globals__, "has_torch_function": lambda _: False},
        func.__name__,
        func.__defaults__,
    )
    plain.__kwdefaults__ = func.__kwdefaults__
    return plain

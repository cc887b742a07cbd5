"""Rules for a tensor group: operations on cut weights and on activations between.

The rules of `ronde.tensor.rules` know element-wise operations, reductions and changes of shape; these are the
other operations of a model (Shoeybi et al. 2019, "Megatron-LM"). An operation without a rule gathers: a model
that does something else between two matrices is right, and slower.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ronde.parallel.tensor.sequence_parallel import TokenSharding
from ronde.parallel.tensor.token_rules import added, by_token, dropped, normalized, token_rules
from ronde.parallel.tensor.vocabulary import cross_entropy, embedding
from ronde.patching.torch_internals import safe_softmax
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, Rule, cut, gathered, is_global, localize
from ronde.tensor.layout import Layout
from ronde.tensor.rules import elementwise, reductions, rowwise, shapes
from ronde.tensor.rules.common import functions, is_sharded, local_operand, rewrap

__all__ = ["scores", "tensor_rules"]


def tensor_rules(tokens: TokenSharding) -> dict[Any, Rule]:
    """Return every rule, keyed by the function that `__torch_function__` receives.

    Args:
        tokens: policy for values that have tokens cut between products of cut matrices.
    """
    table: dict[Any, Rule] = {}
    for rules in (elementwise, reductions, rowwise, shapes):
        table.update(rules.rules())
    table.update(token_rules())
    named: list[tuple[str, Rule]] = [
        ("addmm", functools.partial(addmm, tokens)),
        ("matmul", functools.partial(matmul, tokens)),
        ("__matmul__", functools.partial(matmul, tokens)),
        ("bmm", functools.partial(matmul, tokens)),
        ("baddbmm", baddbmm),
    ]
    for name, rule in named:
        table.update(dict.fromkeys(functions([name]), rule))
    table[F.linear] = functools.partial(linear, tokens)
    table[F.embedding] = functools.partial(embedding, tokens)
    table[F.layer_norm] = normalized
    table[F.rms_norm] = normalized
    table[F.cross_entropy] = cross_entropy
    table[F.scaled_dot_product_attention] = attention
    return table


def linear(
    tokens: TokenSharding, context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Multiply by a cut matrix: `x [..., in]`, `weight [out, in]`, `bias [out]`."""
    given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if not is_sharded(weight, context) or weight.dim() != 2:
        return by_token(context, func, (x, weight, bias), {}) if _is_small(weight, x) else NotImplemented
    if weight._layout.dim == 0:
        return _column(tokens, context, x, weight, bias, F.linear)
    return _row(tokens, context, x, weight, bias, F.linear)


def _is_small(weight: torch.Tensor, x: torch.Tensor) -> bool:
    """Return whether summing a matrix's gradient sends less than gathering `x`."""
    return 2 * weight.numel() <= x.numel()


def addmm(
    tokens: TokenSharding, context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Multiply `x [n, in]` by `weight [in, out]`, and add `bias [out]`.

    Hugging Face's `Conv1D` calls it so.
    """
    if len(args) != 3 or kwargs:
        return NotImplemented
    bias, x, weight = args
    if not is_sharded(weight, context):
        return added(context, func, args, kwargs) if _is_small(weight, x) else NotImplemented
    if bias.dim() != 1:
        return NotImplemented
    if weight._layout.dim == 1:
        return _column(tokens, context, x, weight, bias, _added, flattened=True)
    return _row(tokens, context, x, weight, bias, torch.mm)


def _added(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, weight)


def _column(
    tokens: TokenSharding,
    context: Context,
    x: Any,
    weight: GlobalTensor,
    bias: Any,
    product: Callable[..., torch.Tensor],
    *,
    flattened: bool = False,
) -> GlobalTensor:
    """Multiply by a column-parallel matrix: each rank has some columns of the result."""
    layout = weight._layout.at(-1)
    shift = None if bias is None else local_operand(context, bias, layout)
    made = tokens.columns(context, x, weight, shift, product, flattened=flattened)
    return rewrap(weight, made, layout)


def _row(
    tokens: TokenSharding,
    context: Context,
    x: Any,
    weight: GlobalTensor,
    bias: Any,
    product: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Multiply by a row-parallel matrix: each rank has a summand of the result."""
    wanted = weight._layout.at(x.dim() - 1)
    if is_sharded(x, context) and x._layout == wanted:
        own = x._local
    else:
        own = cut(context, gathered(x), wanted)
    return tokens.total(context, product(own, weight._local), weight, gathered(bias))


def matmul(
    tokens: TokenSharding, context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Multiply batches of matrices, or by a cut matrix.

    Each product of a batch is on one rank; or a matrix is cut along the inner axis.
    """
    if len(args) != 2 or kwargs:
        return NotImplemented
    left, right = args
    if left.dim() < 2 or right.dim() < 2:
        return NotImplemented
    layout = _of_matrices(context, [left, right])
    if layout is not None:
        return _by_matrices(context, torch.matmul, (left, right), layout)
    if right.dim() != 2:
        return NotImplemented
    if not is_sharded(right, context):
        return by_token(context, func, args, kwargs) if _is_small(right, left) else NotImplemented
    if right._layout.dim == 1:
        return _column(tokens, context, left, right, None, torch.matmul)
    return _row(tokens, context, left, right, None, torch.matmul)


def baddbmm(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `input + left @ right`, each matrix by itself."""
    if len(args) != 3 or kwargs or args[0].dim() != 3:
        return NotImplemented
    layout = _of_matrices(context, args[1:])
    if layout is None or not _spans(args[0], layout):
        return NotImplemented
    return _by_matrices(context, torch.baddbmm, args, layout)


def _of_matrices(context: Context, operands: Sequence[Any]) -> Layout | None:
    """Return the common cut of batches of matrices, or None.

    It is counted from the end. The last two axes are matrices. Operands that are not cut are broadcast over
    the cut axis, or have its whole length.
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
    """Apply `scaled_dot_product_attention`, each head or row by itself.

    Operands are `[..., heads, n, width]`.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (given[name] for name in names[:3])
    mask = given.get("attn_mask")
    cuts = [
        each._layout.at(each._layout.dim - each.dim())
        for each in (query, key, value)
        if is_sharded(each, context)
    ]
    if not cuts:
        return NotImplemented
    if all(layout.dim == -3 and layout.outer == 1 for layout in cuts):
        # In grouped-query attention, each operand has its own number of heads per group.
        if any(each.shape[-3] % cuts[0].rows for each in (query, key, value)):
            return NotImplemented
        own = [_heads(context, each) for each in (query, key, value)]
        whole = Layout(-3, cuts[0].rows, cuts[0].world_size, 1, query.shape[-3] // cuts[0].rows)
    elif len(cuts) == 3 and cuts[0].dim < -3 and all(layout == cuts[0] for layout in cuts):
        own, whole = [localize(each) for each in (query, key, value)], cuts[0]
    else:
        return NotImplemented
    if mask is not None:
        if not _spans(mask, whole):
            return NotImplemented
        mask = local_operand(context, mask, whole)
    dropout_p = float(given.get("dropout_p") or 0.0)
    options = {name: given[name] for name in ("scale", "enable_gqa") if given.get(name) is not None}
    causal = bool(given.get("is_causal"))
    like = next(each for each in (query, key, value) if is_sharded(each, context))
    if not dropout_p:
        operands: tuple[Any, ...] = (*own, mask, 0.0, causal)
        result = F.scaled_dot_product_attention(*operands, **options)
        return rewrap(like, result, whole)
    if query.device.type != "cpu" or options.get("enable_gqa"):
        return NotImplemented
    weights = scores(own[0], own[1], mask, causal, options.get("scale"))
    kept = dropped(like, weights, whole.at(weights.dim() + whole.dim), dropout_p)
    return rewrap(like, kept @ own[2], whole)


def _heads(context: Context, value: Any) -> torch.Tensor:
    """Return this rank's heads of a value."""
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
    """Return attention weights before dropout.

    On the CPU torch computes attention in this way if there is dropout.
    """
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

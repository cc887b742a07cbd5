"""Well-known losses as (sum, count): the logits are never gathered.

Each rank computes the sum over its rows; sums and counts are added over ranks in one reduction and
divided once, so a mean is over the whole batch whatever the weights, the ignored targets or the
size of the ranks' slices.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ronde.comm.device_library import is_on_accelerator
from ronde.patching.patches import Patches
from ronde.tensor.context import Context
from ronde.tensor.edges import sum_ranks_deferred
from ronde.tensor.global_tensor import GlobalTensor, Rule, cut, gathered, is_global, localize, materialize
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import enter, is_sharded, local_operand, rewrap, sum_ranks
from ronde.tensor.tree import map_leaves

__all__ = ["install", "rules"]

_POINTWISE = (
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits, F.kl_div, F.soft_margin_loss, F.poisson_nll_loss, F.gaussian_nll_loss,
)  # fmt: skip
# Parameters of each function with their defaults; torch has bound the call to them once already.
_DEFAULTS = {
    function: {name: each.default for name, each in inspect.signature(function).parameters.items()}
    for function in (*_POINTWISE, F.cross_entropy, F.nll_loss)
}


def rules() -> dict[Any, Rule]:
    table: dict[Any, Rule] = dict.fromkeys(_POINTWISE, pointwise)
    table[F.cross_entropy] = class_loss
    table[F.nll_loss] = class_loss
    return table


def install(patches: Patches) -> None:
    """Gather in `l1_loss` with a `weight`, which it hides from `__torch_function__`."""
    plain: Any = F.l1_loss

    @functools.wraps(plain)
    def l1_loss(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        weight = kwargs.get("weight", args[3] if len(args) > 3 else None)
        if weight is None:
            return plain(input, target, *args, **kwargs)
        args, kwargs = map_leaves(materialize, (args, kwargs))
        return plain(materialize(input), materialize(target), *args, **kwargs)

    patches.set(F, "l1_loss", l1_loss)


def _arguments(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the arguments by name, or None with deprecated `reduce` or `size_average`."""
    defaults = _DEFAULTS[func]
    named = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
    if named.pop("size_average", None) is not None or named.pop("reduce", None) is not None:
        return None
    return named


def _total(
    context: Context, local_sum: torch.Tensor, local_count: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum both values over ranks in one fp64 reduction, so that counts are exact."""
    count = torch.as_tensor(local_count, dtype=torch.float64, device=local_sum.device)
    both = sum_ranks(context, torch.stack([local_sum.double(), count]))
    return both[0], both[1]


def _class_count(input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignored: int) -> Any:
    """Return the divisor of a mean over these rows."""
    if target.is_floating_point():
        return input.numel() / max(input.shape[1], 1)
    kept = target != ignored
    if weight is None:
        return kept.sum()
    return weight.detach()[target.masked_fill(~kept, 0)].mul(kept).sum()


def class_loss(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `cross_entropy` or `nll_loss` on rows.

    Shapes are input [rows, C, ...] and target [rows, ...], or [rows, C, ...] for probabilities.
    """
    named = _arguments(func, args, kwargs)
    if named is None or not is_sharded(named["input"], context):
        return NotImplemented
    whole: GlobalTensor = named["input"]
    layout, target, reduction = whole._layout, named["target"], named["reduction"]
    rows: torch.Tensor = whole._rows  # pyright: ignore[reportAssignmentType]
    if layout.dim != 0 or rows.dim() < 2 or not isinstance(target, torch.Tensor):
        return NotImplemented
    rows_target = _rows_like(context, target, layout)
    if rows_target is None or reduction not in ("none", "sum", "mean"):
        return NotImplemented
    weight = named.get("weight")
    local = {**named, "input": rows, "target": rows_target}
    if weight is not None:
        local["weight"] = enter(context, weight)
    if reduction == "none":
        return rewrap(whole, context.attempt(lambda: func(**local)), layout)
    local_sum = context.attempt(lambda: func(**{**local, "reduction": "sum"}))
    if reduction == "sum":
        return sum_ranks_deferred(context, local_sum)
    everywhere = not is_global(target, context) or target._ahead is not None
    if weight is None and everywhere:
        # Every rank has all targets, and knows by itself how many count.
        known = _class_count(whole, gathered(target), None, named.get("ignore_index", -100))
        if isinstance(known, torch.Tensor) and is_on_accelerator(known):
            return sum_ranks_deferred(context, local_sum, known.double())  # to read it would wait
        if known > 0:
            return sum_ranks_deferred(context, local_sum, float(known))
    count = _class_count(rows, rows_target, weight, named.get("ignore_index", -100))
    total, divisor = _total(context, local_sum, count)
    return (total / divisor).to(local_sum.dtype)


def _rows_like(context: Context, value: torch.Tensor, layout: Layout) -> torch.Tensor | None:
    """Return this rank's rows of a tensor cut like the input, or None."""
    if is_global(value, context):
        return localize(value) if value._layout == layout else None
    if not value.dim() or value.shape[0] != layout.size:
        return None
    return cut(context, value, layout)


def pointwise(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute losses of corresponding elements; operands broadcast as in any element-wise operation."""
    named = _arguments(func, args, kwargs)
    if named is None or (func is F.mse_loss and named.get("weight") is not None):
        return NotImplemented
    tensors = {key: value for key, value in named.items() if isinstance(value, torch.Tensor)}
    shapes = {tuple(value.shape) for key, value in tensors.items() if key in ("input", "target")}
    sharded = [value for value in tensors.values() if is_sharded(value, context)]
    if not sharded or len(shapes) != 1:
        return NotImplemented
    if "var" in tensors and tensors["var"].dim() != tensors["input"].dim():
        return NotImplemented  # one variance for each row: torch detects that by comparing whole shapes
    layout = sharded[0]._layout.at(sharded[0]._layout.dim - sharded[0].dim())
    for value in tensors.values():
        if is_global(value, context):
            if value._layout.at(value._layout.dim - value.dim()) != layout or value._local is None:
                return NotImplemented
        elif value.dim() + layout.dim >= 0 and value.shape[value.dim() + layout.dim] not in (1, layout.size):
            return NotImplemented
    local = {key: local_operand(context, value, layout) for key, value in named.items()}
    reduction = named["reduction"]
    if reduction == "none":
        return rewrap(sharded[0], context.attempt(lambda: func(**local)), layout)
    local_sum = context.attempt(lambda: func(**{**local, "reduction": "sum"}))
    (shape,) = shapes
    divisor = {"sum": 1, "mean": torch.Size(shape).numel(), "batchmean": shape[0]}.get(reduction)
    return sum_ranks_deferred(context, local_sum, divisor) if divisor else NotImplemented

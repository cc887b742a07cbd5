"""Element-wise operations: the result has the operands' rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, Rule, is_global, localize
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import functions, is_sharded, local_operand, rewrap, same_layout

__all__ = ["rules"]

_NAMES = """
abs absolute acos acosh asin asinh atan atanh ceil clamp clamp_max clamp_min clip cos cosh deg2rad
digamma erf
erfc erfinv exp exp2 expm1 floor frac lgamma log log10 log1p log2 logit nan_to_num neg negative positive
rad2deg
reciprocal round rsqrt sigmoid sign sgn sin sinh sqrt square tan tanh trunc fix isnan isinf isfinite
logical_not
bitwise_not i0 sinc
add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power
atan2
maximum minimum fmax fmin hypot xlogy logaddexp logaddexp2 lerp addcmul addcdiv where masked_fill
eq ne lt le gt ge not_equal less less_equal greater greater_equal isclose
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor copysign heaviside
relu relu6 elu selu celu gelu silu mish leaky_relu softplus softsign hardtanh hardswish hardsigmoid
hardshrink
softshrink tanhshrink logsigmoid threshold
float double half bfloat16 int long short bool byte cpu cuda clone detach contiguous
zeros_like ones_like full_like empty_like
__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__
__mod__ __rmod__ __pow__ __rpow__ __neg__ __abs__ __invert__ __and__ __or__ __xor__ __rand__ __ror__
__rxor__
__eq__ __ne__ __lt__ __le__ __gt__ __ge__
""".split()


def rules() -> dict[Any, Rule]:
    table: dict[Any, Rule] = dict.fromkeys(functions(_NAMES), apply)
    table.update(dict.fromkeys(functions(["to", "type", "type_as"]), convert))
    table[torch.Tensor.data.__get__] = apply  # pyright: ignore[reportAttributeAccessIssue]
    table[torch.Tensor.detach_] = detach_in_place
    return table


def detach_in_place(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Leave a tensor without a graph as it is (`tensor.detach_()`).

    torch would take a gathered value for a view.
    """
    return NotImplemented if args[0].requires_grad else args[0]


def convert(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """`to`, `type` and `type_as`: of another tensor only its type and device matter."""
    if is_global(args[0], context) and not is_sharded(args[0], context):
        return NotImplemented  # its rows are not valid
    result = func(*map(localize, args), **{key: localize(value) for key, value in kwargs.items()})
    if not is_sharded(args[0], context):
        return result
    return _itself_or_new(args[0], result, args[0]._layout)


def _itself_or_new(value: GlobalTensor, result: Any, layout: Layout) -> Any:
    """Return the operand itself for a conversion without effect, as torch does."""
    return value if result is value._rows else rewrap(value, result, layout)


def apply(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.get("out") is not None or kwargs.get("inplace") or kwargs.get("requires_grad"):
        return NotImplemented  # changed in place, or a new leaf whose gradient will be read
    if func is torch.where and len(args) + len(kwargs) == 1:
        return NotImplemented  # the indices of the true entries
    values = [*args, *kwargs.values()]
    tensors = [value for value in values if is_global(value, context)]
    layout = same_layout(tensors)
    if layout is None or not tensors:
        return NotImplemented
    whole = [each for each in values if isinstance(each, torch.Tensor) and not is_global(each, context)]
    if any(value.dim() + layout.dim >= 0 and not _spans(value, layout) for value in whole):
        return NotImplemented
    result = func(
        *(local_operand(context, value, layout) for value in args),
        **{key: local_operand(context, value, layout) for key, value in kwargs.items()},
    )
    return _itself_or_new(tensors[0], result, layout)


def _spans(value: torch.Tensor, layout: Layout) -> bool:
    return value.shape[value.dim() + layout.dim] in (1, layout.size)

"""Operations along other dimensions than the batch: each row is independent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, Rule, localize
from ronde.tensor.rules.common import functions, is_sharded, rewrap
from ronde.tensor.rules.reductions import dimensions, finish

__all__ = ["rules"]

# The dimension is kept.
_ALONG = "softmax _safe_softmax log_softmax softmin cumsum cumprod logcumsumexp flip normalize".split()
# The dimension vanishes unless keepdim.
_REDUCING = "argmax argmin amax amin max min logsumexp prod all any".split()
# Two results, the dimension kept.
_RANKING = "topk sort argsort".split()
_DIM_AT = {"topk": 2, "normalize": 2}
_DEFAULT_DIM = {"topk": -1, "sort": -1, "argsort": -1, "normalize": 1}


def rules() -> dict[Any, Rule]:
    table: dict[Any, Rule] = {}
    for names, rule in ((_ALONG, along), (_REDUCING, reducing), (_RANKING, along)):
        for name in names:
            for function in functions([name]):
                table[function] = rule
    for function in functions(["gather"]):
        table[function] = pick
    for function in functions(["cat", "concat"]):
        table[function] = join
    return table


def _named(args: tuple[Any, ...], kwargs: dict[str, Any], name: str, place: int, default: Any) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[place] if len(args) > place else default


def _only_first(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    rest = (*args[1:], *kwargs.values())
    return (
        bool(args)
        and is_sharded(args[0], context)
        and not any(isinstance(value, torch.Tensor) for value in rest)
    )


def along(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if not _only_first(context, args, kwargs) or kwargs.get("out") is not None:
        return NotImplemented
    value: GlobalTensor = args[0]
    name = func.__name__
    dim = _named(args, kwargs, "dim", _DIM_AT.get(name, 1), _DEFAULT_DIM.get(name))
    if name == "flip":
        dim = _named(args, kwargs, "dims", 1, None) if len(args) < 3 else args[1:]
    if dim is None or isinstance(dim, bool) or value._layout.dim in dimensions(value, dim):
        return NotImplemented
    return rewrap(value, func(value._local, *args[1:], **kwargs), value._layout)


def reducing(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if not _only_first(context, args, kwargs) or kwargs.get("out") is not None:
        return NotImplemented
    value: GlobalTensor = args[0]
    dim = _named(args, kwargs, "dim", 1, None)
    if dim is None or isinstance(dim, (bool, torch.dtype)):
        return NotImplemented
    dims = dimensions(value, dim)
    if value._layout.dim in dims:
        return NotImplemented
    keepdim = bool(_named(args, kwargs, "keepdim", 2, False))
    result = func(value._local, *args[1:], **kwargs)
    if isinstance(result, torch.Tensor):
        return finish(context, value, result, dims, keepdim)
    return type(result)([finish(context, value, item, dims, keepdim) for item in result])


def pick(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) != 3 or kwargs:
        return NotImplemented
    value, dim, index = args
    if not (is_sharded(value, context) and is_sharded(index, context) and value._layout == index._layout):
        return NotImplemented
    if value._layout.dim in dimensions(value, dim):
        return NotImplemented
    picked = context.attempt(lambda: func(value._local, dim, index._local))
    return rewrap(value, picked, value._layout)


def join(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = _named(args, kwargs, "tensors", 0, None)
    dim = _named(args, kwargs, "dim", 1, 0)
    if not isinstance(tensors, (tuple, list)) or not isinstance(dim, int) or kwargs.get("out") is not None:
        return NotImplemented
    # An empty vector adds nothing to a join; a cache of keys begins with one.
    sharded = [value for value in tensors if is_sharded(value, context)]
    if not sharded or not all(
        is_sharded(value, context) or _adds_nothing(value, sharded[0]) for value in tensors
    ):
        return NotImplemented
    first, *others = sharded
    if others and first._layout.dim in dimensions(first, dim):
        return NotImplemented
    if any(value._layout != first._layout for value in others):
        return NotImplemented
    return rewrap(first, torch.cat([localize(value) for value in sharded], dim), first._layout)


def _adds_nothing(value: Any, like: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == (0,) and value.dtype == like.dtype

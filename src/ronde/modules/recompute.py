"""Recomputation in backward, on this rank's rows and with the draws of forward.

A checkpoint recomputes, and so does the backward of a user's `torch.autograd.Function`. It may call modules,
run backward again or ask for gradients there: a reversible block, a checkpoint written by hand. Without this
file, these would be treated as calls of the script on a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd.function import BackwardCFunction

from ronde.patching.patches import Patches
from ronde.rng.standing import here
from ronde.tensor.context import Context, Region
from ronde.tensor.global_tensor import GlobalTensor, wrap
from ronde.tensor.graph import is_users_function
from ronde.tensor.tensor_class import own_class

__all__ = ["as_it_is", "install"]

_STANDING = "_ronde_standing"


def install(patches: Patches, context: Context) -> None:
    plain: Any = torch.utils.checkpoint.checkpoint

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("use_reentrant") is False and any(map(_has_class, args)):
            function, args = _with_classes(function, args)
        if context.region is not Region.SCRIPT:
            function = _resuming(context, function)
        return plain(function, *args, **kwargs)

    patches.set(torch.utils.checkpoint, "checkpoint", checkpoint)
    _install_own_backward(patches, context)


def _install_own_backward(patches: Patches, context: Context) -> None:
    plain_init: Any = BackwardCFunction.__init__

    def init(node: Any) -> None:
        """Record the execution state in a node, which is made before its forward runs."""
        plain_init(node)
        if context.region is Region.SCRIPT or not is_users_function(type(node)._forward_cls):
            return
        if context.is_in_step():
            setattr(node, _STANDING, here(context))

    patches.set(BackwardCFunction, "__init__", init)
    for name in ("apply", "apply_boxed"):
        if hasattr(BackwardCFunction, name):
            patches.set(BackwardCFunction, name, _standing(context, getattr(BackwardCFunction, name)))


def _standing(context: Context, plain: Callable[..., Any]) -> Callable[..., Any]:
    def apply(node: Any, *gradients: Any) -> Any:
        with getattr(node, _STANDING, nullcontext)():
            return plain(node, *gradients)

    return apply


def _has_class(arg: Any) -> bool:
    return isinstance(arg, GlobalTensor) or own_class(arg) is not None


def _with_classes(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Give a checkpoint empty tensors in place of sharded ones.

    Where hooks see the tensors that autograd saves, a checkpoint would get a plain whole tensor back for
    these. From empty ones it learns the device. Recomputation starts from their values in forward, though one
    may be whole by then.
    """
    again: tuple[Any, ...] | None = None
    shown = tuple(
        torch.empty(0, dtype=arg.dtype, device=arg.device) if _has_class(arg) else arg for arg in args
    )

    def as_given(*given: Any, **kwargs: Any) -> Any:
        nonlocal again
        known, again = (args, tuple(map(as_it_is, args))) if again is None else (again, again)
        values = (own if _has_class(own) else each for own, each in zip(known, given, strict=True))
        return function(*values, **kwargs)

    return as_given, shown


def as_it_is(arg: Any) -> Any:
    """Return an argument that keeps its present state."""
    if not isinstance(arg, GlobalTensor) or (rows := arg._local) is None:
        return arg
    return wrap(arg._context, rows, arg._layout, arg._rules)


def _resuming(context: Context, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function`: from its second call on it runs in the present execution state."""
    again = here(context)
    first = True

    def resumed(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        if first:
            first = False
            return function(*args, **kwargs)
        with again():
            return function(*args, **kwargs)

    return resumed

"""`torch.autograd.grad`, custom functions and parameters, given global tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from ronde.boundary.context import Context, Region
from ronde.boundary.deferred import DeferredScalar
from ronde.boundary.edges import Leave
from ronde.boundary.global_tensor import GlobalTensor, materialize, wrap
from ronde.boundary.patches import Patches

__all__ = ["install"]

# By it checkpoints of torch before 2.13 keep arguments; it computes nothing of them.
_KEEPS_ARGUMENTS: Any = getattr(torch.utils.checkpoint, "_NoopSaveInputs", None)


def install(patches: Patches, context: Context) -> None:
    _install_grad(patches, context)
    _install_function(patches, context)
    _install_parameter(patches)


def _install_grad(patches: Patches, context: Context) -> None:
    plain: Any = torch.autograd.grad

    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Results are local gradients of what is used on shards; their mean over ranks is the true one."""
        if context.region is not Region.SCRIPT or not context.on_main_thread() or context.in_transform():
            return plain(outputs, inputs, grad_outputs, *args, **kwargs)
        asked: Sequence[Any] = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
        local = [_gradient_target(value) for value in asked]
        results = plain(_whole(outputs), local, _whole(grad_outputs), *args, **kwargs)
        return tuple(_leave(context, value, result) for value, result in zip(asked, results, strict=True))

    patches.set(torch.autograd, "grad", grad)


def _gradient_target(value: Any) -> Any:
    """The plain tensor by which a global tensor is part of the graph."""
    if not isinstance(value, GlobalTensor):
        return value
    return value._full if value._local is None else value._local


def _leave(context: Context, value: Any, result: torch.Tensor | None) -> torch.Tensor | None:
    if result is None:
        return None
    if isinstance(value, GlobalTensor) and value._local is not None:
        # The local gradient of a shard is W times the true one.
        return wrap(context, result / context.world_size, value._layout, value._rules)
    return Leave.apply(result, context)


def _whole(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_whole(item) for item in value)
    return materialize(value)


def _install_function(patches: Patches, context: Context) -> None:
    plain: Any = torch.autograd.Function.__dict__["apply"].__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """A user's own function sees whole values, and makes such: it may do anything with its data."""
        if cls is _KEEPS_ARGUMENTS:
            return plain(cls, *args, **kwargs)  # the same as in forward are there to compute again
        if any(isinstance(value, (GlobalTensor, DeferredScalar)) for value in args):
            args = tuple(materialize(value) for value in args)
        if context.region is not Region.SCRIPT or cls.__module__.startswith("ronde."):
            return plain(cls, *args, **kwargs)
        context.gradients_watched = True
        with context.enter(Region.REPLICATED, None):
            return plain(cls, *args, **kwargs)

    patches.set(torch.autograd.Function, "apply", classmethod(apply))


def _install_parameter(patches: Patches) -> None:
    plain: Any = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        return plain(cls, materialize(data), requires_grad)

    patches.set(torch.nn.Parameter, "__new__", staticmethod(new))

"""`torch.autograd.grad`, custom functions and parameters, given global tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from ronde.errors import UsageError
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.patching.stacks import GRAD
from ronde.patching.torch_internals import EnableTorchFunction
from ronde.tensor.context import Context, MainThreadState, Region, in_transform
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.edges import Leave
from ronde.tensor.fingerprint import compare_losses
from ronde.tensor.global_tensor import GlobalTensor, materialize, wrap
from ronde.tensor.graph import crosses_ranks
from ronde.trace.step_clock import Activity

__all__ = ["ENGINE", "install"]

# Checkpoints of torch before 2.13 keep their arguments with this function, which computes nothing.
_KEEPS_ARGUMENTS: Any = getattr(torch.utils.checkpoint, "_NoopSaveInputs", None)


def install(patches: Patches, context: Context, replicas: Context, on_backward: Callable[[], None]) -> None:
    """Patch `torch.autograd.grad`, the autograd engine, `Function.apply` and `nn.Parameter`.

    Args:
        replicas: the ranks over which gradients of parameters are averaged.
        on_backward: callback before each `grad` that the script begins.
    """
    _install_engine(patches, context)
    patches.layer(GRAD, "boundary", functools.partial(_layer_of_grad, context, replicas, on_backward))
    _install_function(patches, context)
    _install_parameter(patches)


def _install_engine(patches: Patches, context: Context) -> None:
    """Enable `__torch_function__` while the autograd engine runs.

    `Tensor.backward` of a subclass runs with `__torch_function__` disabled. Code recomputed inside of
    backward would then read the memory of a sharded parameter instead of gathering the whole value.
    """
    plain: Any = getattr(torch.autograd, ENGINE)

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        before = context.clock.enter(Activity.MODEL) if context.clock.armed else None
        with EnableTorchFunction():
            results = plain(*args, **kwargs)
        if before is not None:
            context.clock.enter(before)
        return results

    patches.set(torch.autograd, ENGINE, run_backward)


ENGINE = "_engine_run_backward"
"""Name of the engine's entry point, through which `backward` and `grad` run."""

# Positional parameters of `torch.autograd.grad` after outputs, inputs and grad_outputs, in its order.
_OPTIONS = (
    "retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched", "materialize_grads",
)  # fmt: skip


def _layer_of_grad(
    context: Context, replicas: Context, on_backward: Callable[[], None], plain: Callable[..., Any]
) -> Callable[..., Any]:
    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Average local gradients over ranks to the gradients of one device."""
        options = {**dict(zip(_OPTIONS, args, strict=False)), **kwargs}
        if not context.on_main_thread() or in_transform():
            return plain(outputs, inputs, grad_outputs, **options)
        if type(inputs) is dict:
            found = grad(outputs, tuple(inputs.values()), grad_outputs, **options)
            return dict(zip(inputs, found, strict=True))
        asked = _several(inputs)
        whole = context.region is Region.SCRIPT
        if whole:
            on_backward()
        if context.compares:
            compare_losses(context, outputs)
        given = [_whole(each) if whole else each for each in (_several(outputs), grad_outputs)]
        if options.get("is_grads_batched") and crosses_ranks(given[0]):
            raise UsageError(
                "several gradients at once (is_grads_batched=True, vectorize=True) are computed by vmap, in "
                "which collectives are not possible; compute them one after another, or without vectorize "
                "[R376]"
            )
        if not whole:
            return plain(given[0], asked, given[1], **options)
        local = [_gradient_target(value) for value in asked]
        results = context.attempt(lambda: plain(given[0], local, given[1], **options))
        return tuple(_leave(replicas, *each) for each in zip(asked, results, strict=True))

    return modes_first(grad)


def _several(values: Any) -> tuple[Any, ...]:
    """Return tensors or graph edges as a tuple (a single `GradientEdge` is one)."""
    alone = isinstance(values, (torch.Tensor, torch.autograd.graph.GradientEdge, DeferredScalar))
    return (values,) if alone else tuple(values)


def _gradient_target(value: Any) -> Any:
    """Return the plain tensor through which a global tensor is part of the graph."""
    if not isinstance(value, GlobalTensor):
        return value
    return _gradient_target(value._full if value._local is None else value._local)


def _leave(replicas: Context, value: Any, result: torch.Tensor | None) -> torch.Tensor | None:
    """Convert the local gradient of `value` to the one that the script sees."""
    if result is None:
        return None
    if isinstance(value, GlobalTensor) and value._local is not None:
        return _of_rows(value, value._local, result)
    return Leave.apply(result, replicas)


def _of_rows(value: GlobalTensor, rows: torch.Tensor, result: torch.Tensor) -> GlobalTensor:
    """Convert the gradient of a global tensor's innermost rows to a global tensor."""
    if isinstance(rows, GlobalTensor) and rows._local is not None:
        result = _of_rows(rows, rows._local, result)
    # The local gradient of a shard is W times the true one.
    return wrap(value._context, result / value._context.weight, value._layout, value._rules)


def _whole(value: Any) -> Any:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.autograd.graph.GradientEdge):
        return tuple(_whole(item) for item in value)
    return materialize(value)


def _install_function(patches: Patches, context: Context) -> None:
    # In Python up to torch 2.13, in C since.
    method: Any = torch.autograd.Function.__dict__["apply"]

    def plain(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(None, cls)(*args, **kwargs)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a `Function` of the script with whole values, as on one device."""
        if cls is _KEEPS_ARGUMENTS:
            return plain(cls, *args, **kwargs)  # arguments of forward are still there for recomputation
        if any(isinstance(value, (GlobalTensor, DeferredScalar)) for value in args):
            args = tuple(materialize(value) for value in args)
        elsewhere = context.region is not Region.SCRIPT or not context.is_in_step()
        if elsewhere or cls.__module__.startswith("ronde."):
            return plain(cls, *args, **kwargs)
        context.gradients_watched = True
        with context.enter(MainThreadState(Region.REPLICATED, function=cls.__name__)):
            return plain(cls, *args, **kwargs)

    patches.set(torch.autograd.Function, "apply", classmethod(apply))


def _install_parameter(patches: Patches) -> None:
    plain: Any = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        return plain(cls, materialize(data), requires_grad)

    patches.set(torch.nn.Parameter, "__new__", staticmethod(new))

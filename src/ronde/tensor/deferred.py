"""A scalar loss with a sum over ranks that is still pending.

Its reduction was started when the loss was computed, by all ranks in the same order; only the *waiting* is
delayed until the value is read. Backward needs the gradient, not the value, so the ranks need not meet
between forward and backward. A value formatted on one rank alone pairs with no other collective: nothing is
started late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction, make_wrapper_subclass
from ronde.tensor.context import Context
from ronde.tensor.tree import instances
from ronde.trace.step_clock import Activity

__all__ = ["DeferredScalar", "defer", "resolve", "root"]

T = torch.Tensor

# Functions that are linear in the first argument, so they can be applied to the gradient before the value
# arrives.
_SCALING = {
    *(torch.mul, T.mul, T.__mul__, T.__rmul__, torch.neg, T.neg, T.__neg__),
    *(torch.div, T.div, torch.true_divide, T.true_divide, T.__truediv__),
}
_ADDING = {torch.add, T.add, T.__add__, T.__radd__}
# Limit of deferred operations: the value of a long sum of losses would otherwise need deep recursion.
_LONGEST_CHAIN = 32
# Functions that read the number without its graph.
_READING = {T.item, T.__format__}
_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "requires_grad", "grad_fn", "is_leaf")
_METADATA = {
    *(T.dim, T.size, T.numel, T.is_floating_point, torch.is_floating_point, torch.numel),
    *(getattr(T, name).__get__ for name in _ATTRIBUTES),
}


class DeferredScalar(torch.Tensor):
    """Scalar loss with a pending reduction; made by `defer` alone.

    For the script it is a plain tensor without dimensions.
    """

    # Slots, as the instance dictionary is the script's.
    __slots__ = ("_arrive", "_arrived", "_context", "_depth", "_number", "_plain", "_stand_in")
    # A scalar with the graph and gradient of the final value; its own value is this rank's share.
    _stand_in: torch.Tensor
    # Function that waits, and returns the value with its graph.
    _arrive: Callable[[], torch.Tensor]
    # Function that waits, and returns the value without its graph.
    _number: Callable[[], torch.Tensor] | None
    # The value as it arrived; values derived from this scalar are computed from it.
    _arrived: torch.Tensor | None
    # The value with its graph, once it was read; the script may change it in place.
    _plain: torch.Tensor | None
    # Number of deferred operations between this value and its origin.
    _depth: int
    # Context of the reduction; its clock records the time spent here.
    _context: Context

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        context = first._context if isinstance(first, DeferredScalar) else _context_of((args, kwargs))
        clock = context.clock
        if not clock.armed:
            return _carried_out(func, args, kwargs)
        before = clock.enter(Activity.OWN)
        result = _carried_out(func, args, kwargs)
        clock.enter(before)
        return result

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*(_resolved(value) for value in args), **(kwargs or {}))

    # A tensor subclass with a Python `__torch_dispatch__` refuses these; the value itself does not.
    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return resolve(self).numpy(*args, **kwargs)

    def tolist(self) -> Any:
        return resolve(self).tolist()


def _carried_out(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a function to a loss, deferring linear functions until the value is read."""
    first = args[0] if args else None
    if isinstance(first, DeferredScalar) and first._plain is None and not kwargs:
        if func in _METADATA:
            return func(first._stand_in, *args[1:])
        if (
            getattr(func, "__wrapped__", func) in _READING
            and first._number is not None
            and first._arrived is None
        ):
            return func(first._number(), *args[1:])
        if first._depth >= _LONGEST_CHAIN:
            resolve(first)
        elif func in _SCALING and all(isinstance(value, (int, float)) for value in args[1:]):
            return _mapped(first, lambda value: func(value, *args[1:]))
        elif func in _ADDING and len(args) == 2:
            return _added(first, args[1])
    if func is T.backward and isinstance(first, DeferredScalar):
        return _begin_backward(first, *args[1:], **kwargs)
    return func(*(_resolved(value) for value in args), **{k: _resolved(v) for k, v in kwargs.items()})


def _begin_backward(
    loss: DeferredScalar, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    """Start `Tensor.backward` without waiting for the value of the loss."""
    torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)  # pyright: ignore[reportPrivateImportUsage]


def _context_of(given: Any) -> Context:
    """Return the context of the first loss in an argument list."""
    return next(instances(DeferredScalar, given))._context


def defer(
    context: Context,
    stand_in: torch.Tensor,
    arrive: Callable[[], torch.Tensor],
    depth: int = 0,
    number: Callable[[], torch.Tensor] | None = None,
) -> DeferredScalar:
    """Create a scalar from a pending reduction; backward can start before the value arrives.

    Args:
        stand_in: scalar in the graph with the gradient that the value will have; its value is this rank's
            share.
        arrive: function that waits for the reduction and returns the value with its graph.
        depth: number of deferred operations since the reduction.
        number: like `arrive`, but returns the value without the graph.
    """
    with DisableTorchFunction():
        shell: Any = make_wrapper_subclass(
            DeferredScalar, stand_in.shape, dtype=stand_in.dtype, device=stand_in.device
        )
    shell._stand_in, shell._arrive, shell._arrived, shell._plain = stand_in, arrive, None, None
    shell._number, shell._context, shell._depth = number, context, depth
    return shell


def resolve(value: DeferredScalar) -> torch.Tensor:
    """Wait for the value and return it as a plain tensor with its graph.

    Each call returns the same tensor.
    """
    if value._plain is None:
        with _modes_of(value._stand_in):
            value._plain = _original(value).clone()
    return value._plain


def _original(value: DeferredScalar) -> torch.Tensor:
    if value._arrived is None:
        with _modes_of(value._stand_in):
            value._arrived = value._arrive()
    return value._arrived


@contextmanager
def _modes_of(stand_in: torch.Tensor) -> Iterator[None]:
    """Restore grad and inference mode of the place where the value was computed."""
    with torch.inference_mode(stand_in.is_inference()), torch.set_grad_enabled(stand_in.requires_grad):
        yield


def root(value: Any) -> Any:
    """Return the tensor at which backward starts, without waiting for the value."""
    if not isinstance(value, DeferredScalar):
        return value
    return value._stand_in if value._plain is None else value._plain


def _resolved(value: Any) -> Any:
    if isinstance(value, DeferredScalar):
        return resolve(value)
    if isinstance(value, (tuple, list)) and any(isinstance(item, DeferredScalar) for item in value):
        return type(value)(_resolved(item) for item in value)
    return value


def _mapped(value: DeferredScalar, function: Callable[[torch.Tensor], torch.Tensor]) -> DeferredScalar:
    return defer(
        value._context, function(value._stand_in), lambda: function(_original(value)), value._depth + 1
    )


def _added(value: DeferredScalar, other: Any) -> Any:
    if isinstance(other, DeferredScalar) and other._plain is None and other._depth < _LONGEST_CHAIN:
        depth = max(value._depth, other._depth) + 1
        stand_in = value._stand_in + other._stand_in
        return defer(value._context, stand_in, lambda: _original(value) + _original(other), depth)
    if isinstance(other, (int, float)):
        return _mapped(value, lambda plain: plain + other)
    return resolve(value) + _resolved(other)

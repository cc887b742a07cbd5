"""A global tensor: one value, with this rank's rows of the batch.

For the script it is a `torch.Tensor` of the whole shape. An operation that has a rule (`rules/`) runs on the
rows; any other sees the whole value, gathered once. C++ code, which bypasses Python's `__torch_function__`,
reaches `__torch_dispatch__`, and its gradients the Gather node that made the tensor. The idea of a global
view of a sharded value is OneFlow's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeGuard

import torch

from ronde.errors import RondeError
from ronde.patching.torch_internals import DisableTorchFunction, DisableTorchFunctionSubclass
from ronde.tensor.context import Context, Region, carries_tangents, in_transform
from ronde.tensor.deferred import DeferredScalar, resolve
from ronde.tensor.edges import Slice, gather_data
from ronde.tensor.kinds import (
    METADATA,
    NUMPYS_NAMES,
    changes_first,
    changes_shape,
    lends_memory,
    may_copy,
    watches,
)
from ronde.tensor.layout import Layout
from ronde.tensor.memory import memory
from ronde.tensor.shard import Rule, Shard, innermost, shard_of, whole_value
from ronde.tensor.tree import instances, map_leaves
from ronde.tensor.views import (
    hold_whole,
    lend,
    notice,
    open_to_write,
    remember_view,
    share,
    whole_now,
)
from ronde.trace.step_clock import Activity

__all__ = [
    "GlobalTensor",
    "Rule",
    "StrayBatch",
    "cuts_rows",
    "gather_ahead",
    "gathered",
    "is_global",
    "localize",
    "materialize",
    "of_context",
    "settled",
    "wrap",
]

# torch's own descriptors, which the class below overrides.
_PLAIN_GRAD: Any = torch.Tensor.grad
_PLAIN_DIM: Any = torch.Tensor.dim
_PLAIN_SHAPE: Any = torch.Tensor.shape
_PLAIN_DATA: Any = torch.Tensor.data  # pyright: ignore[reportAttributeAccessIssue]


class StrayBatch(RondeError):
    """A tentatively sharded model used a batch that is not among its arguments."""


class GlobalTensor(Shard):
    """One value cut over the ranks of a context; made by `wrap` alone."""

    __slots__ = ()

    @property
    def _local(self) -> torch.Tensor | None:
        """Rows of this rank, part of the graph; None once the whole value counts."""
        notice(self)
        return self._rows

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DeferredScalar in types:
            args, kwargs = settled((args, kwargs))
        kwargs = kwargs or {}
        first = args[0] if args else None
        if type(first) is not GlobalTensor:
            first = next(instances(GlobalTensor, (args, kwargs)))
        if first._context.outer is not None:
            first = _outermost(first, (args, kwargs))
        context = first._context
        region = context.region
        if region is Region.OBSERVED:
            raise StrayBatch("it uses a batch that is not among its arguments [R348]")
        if region is Region.SHARDED:
            raise RondeError(
                "a model used a batch that is not among its arguments, as it did not in its first call; "
                "pass it to the model as an argument [R370]"
            )
        if func in METADATA and isinstance(args[0], GlobalTensor):
            with DisableTorchFunctionSubclass():
                return func(args[0]._full if args[0]._local is None else args[0], *args[1:], **kwargs)
        if not context.clock.armed:
            return _carried_out(first, region, func, types, args, kwargs)
        begun = context.clock.operation()
        result = _carried_out(first, region, func, types, args, kwargs)
        context.clock.operated(begun, _elements((args, kwargs, result)))
        return result

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*_map(_data, args), **_map(_data, kwargs))
        lent = [value for value in instances(GlobalTensor, (args, kwargs)) if _lies_in(result, value)]
        if not lent or func._schema.is_mutable:
            return result
        for value in lent:
            lend(value)
        return func(*_map(_data, args), **_map(_data, kwargs))

    # Rules read these very often, and `__torch_function__` would double their cost.
    def dim(self) -> int:
        if self._local is None or self._context.standing.region is not Region.SCRIPT:
            return super().dim()
        with DisableTorchFunction():
            return _PLAIN_DIM(self)

    @property
    def shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._local is None or self._context.standing.region is not Region.SCRIPT:
            return _PLAIN_SHAPE.__get__(self)
        with DisableTorchFunction():
            return _PLAIN_SHAPE.__get__(self)

    # A tensor subclass with a Python `__torch_dispatch__` refuses these; the whole value does not.
    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return lend(self).numpy(*args, **kwargs)

    def tolist(self) -> Any:
        return materialize(self).tolist()

    def data_ptr(self) -> int:
        return lend(self).data_ptr()

    # These are set on the rows, through which every gradient passes: gradients of values computed from the
    # rows, before or after, and that of the gathered value.
    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        self._context.gradients_watched = True
        rows = self._rows_with_gradient()
        if rows is None:
            return super().register_hook(hook)
        return rows.register_hook(_hook_on_rows(self, hook))

    def retain_grad(self) -> None:
        self._context.gradients_watched = True
        rows = self._rows_with_gradient()
        return super().retain_grad() if rows is None else rows.retain_grad()

    @property
    def grad(self) -> torch.Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        rows = self._rows_with_gradient()
        if rows is None:
            return _PLAIN_GRAD.__get__(self)
        if rows.grad is None:
            return None
        factor = self._context.gradient_factor
        return wrap(self._context, rows.grad / factor, self._layout, self._rules)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        _PLAIN_GRAD.__set__(self, value)

    # By torch's own descriptor, for which there is a rule, also where a session has replaced the attribute.
    data: Any = property(  # pyright: ignore[reportIncompatibleVariableOverride]
        lambda self: self.__torch_function__(_PLAIN_DATA.__get__, (), (self,)), _PLAIN_DATA.__set__
    )

    def _rows_with_gradient(self) -> torch.Tensor | None:
        rows = self._local if self._context.region is Region.SCRIPT else None
        return None if rows is None or not rows.requires_grad else rows


def _carried_out(
    first: GlobalTensor, region: Region, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a function to global tensors: by a rule, or on whole values.

    Args:
        first: a global tensor among the arguments, whose context and rules are used.
    """
    context = first._context
    whole = in_transform() or carries_tangents()
    if region is Region.SCRIPT and not whole and not _mixed(types):
        # torch's own functions call this by their name in the module, where a patch may have replaced them.
        known = func if func in first._rules else getattr(func, "__wrapped__", func)
        rule = first._rules.get(known)
        if rule is not None and NUMPYS_NAMES.isdisjoint(kwargs):
            # `torch.where` gets the condition first
            if not args and "input" in kwargs and "condition" not in kwargs:
                args = (kwargs.pop("input"),)
            result = rule(context, known, args, kwargs)
            if result is not NotImplemented:
                base = args[0] if args else None
                if is_global(result, context) and is_global(base, context) and result is not base:
                    remember_view(func, base, args[1:], kwargs, result)
                return result
    if context.on_whole is not None:
        context.on_whole(func, (args, kwargs))
    return _on_whole_values(context, func, args, kwargs)


def _outermost(first: GlobalTensor, values: Any) -> GlobalTensor:
    """Return a global tensor that is not the shard of another one."""
    return next((each for each in instances(GlobalTensor, values) if each._context.outer is None), first)


def is_global(value: Any, context: Context) -> TypeGuard[GlobalTensor]:
    """Return whether a value is cut over a context's ranks at the outermost level."""
    return isinstance(value, GlobalTensor) and value._context is context


def _elements(values: Any) -> int:
    """Return the number of elements of global tensors on this rank."""
    rows = (value._rows for value in instances(GlobalTensor, values))
    return sum(each.numel() for each in rows if each is not None)


_TENSORS = {torch.Tensor, GlobalTensor, DeferredScalar}


def _hook_on_rows(value: GlobalTensor, hook: Callable[[Any], Any]) -> Callable[[torch.Tensor], Any]:
    context, layout, rules = value._context, value._layout, value._rules

    def on_rows(local: torch.Tensor) -> torch.Tensor | None:
        changed = hook(wrap(context, local / context.weight, layout, rules))
        if changed is None:
            return None
        rows = localize(changed) if isinstance(changed, GlobalTensor) else cut(context, changed, layout)
        return rows * context.weight

    return on_rows


def _mixed(types: Collection[type]) -> bool:
    """Return whether a tensor has a foreign class with its own `__torch_function__`."""
    return any(kind not in _TENSORS and not issubclass(kind, torch.nn.Parameter) for kind in types)


def settled(value: Any) -> Any:
    """Wait for every deferred loss in an argument list."""
    return map_leaves(lambda leaf: resolve(leaf) if isinstance(leaf, DeferredScalar) else leaf, value)


def _map(fn: Callable[[GlobalTensor], Any], value: Any) -> Any:
    """Apply `fn` to the global tensors in an argument list."""
    if isinstance(value, GlobalTensor):
        return fn(value)
    if isinstance(value, tuple):
        mapped = [_map(fn, item) for item in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else tuple(mapped)
    if isinstance(value, list):
        return [_map(fn, item) for item in value]
    if isinstance(value, dict):
        return {key: _map(fn, item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(_map(fn, value.start), _map(fn, value.stop), _map(fn, value.step))
    return value


def _data(value: GlobalTensor) -> torch.Tensor:
    local = value._local
    if (
        local is not None
        and local.requires_grad
        and value._full is None
        and not isinstance(local, GlobalTensor)
    ):
        return gather_data(value._context, local, value._layout)
    whole = whole_value(value)
    return _data(whole) if isinstance(whole, GlobalTensor) else whole.detach()


def materialize(value: Any) -> Any:
    """Return the whole value as a plain tensor with its graph; other values unchanged.

    A collective where the value has not been gathered before.
    """
    while isinstance(value, (GlobalTensor, DeferredScalar)):
        value = gathered(value)
    return value


def gathered(value: Any) -> Any:
    """Gather the outermost cut only of a global tensor; wait for a deferred loss."""
    if isinstance(value, DeferredScalar):
        return resolve(value)
    return whole_now(value) if isinstance(value, GlobalTensor) else value


def cuts_rows(value: Any) -> TypeGuard[GlobalTensor]:
    """Return whether a value is cut along the rows of a batch."""
    return isinstance(value, GlobalTensor) and value._context.cuts_rows


def localize(value: Any) -> Any:
    """Return this rank's rows as a plain tensor with its graph; other values unchanged."""
    if not isinstance(value, GlobalTensor):
        return value
    if value._local is not None:
        return value._local
    full = value._full
    assert full is not None
    return cut(value._context, full, value._layout)


def cut(context: Context, full: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return this rank's rows of a replicated value, with a Slice edge for gradients."""
    if full.requires_grad and torch.is_grad_enabled():
        if full.is_leaf and context.gradient_factor == 1:
            context.adopt(full)
        return innermost(lambda rows: Slice.apply(rows, context, layout), full, layout.dim)
    return innermost(lambda rows: layout.take(rows, context.rank), full, layout.dim)


def _lies_in(result: Any, value: GlobalTensor) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_lies_in(item, value) for item in result)
    full = value._full
    if not isinstance(result, torch.Tensor) or full is None:
        return False
    if isinstance(result, GlobalTensor) or isinstance(full, GlobalTensor):
        return False
    place = memory(result)
    return place is not None and place == memory(full)


def _on_whole_values(context: Context, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0] if args else kwargs.get("input")
    for changed in of_context(context, kwargs.get("out")):
        hold_whole(changed)
    if is_global(first, context) and changes_shape(func):
        hold_whole(first)
    elif changes_first(func, kwargs):
        for changed in of_context(context, first):
            open_to_write(changed)
    elif is_global(first, context) and watches(func):
        gathered(first)
        first._rows = None
    elif is_global(first, context) and lends_memory(func):
        lend(first)
    result = _called(context, func, args, kwargs)
    if is_global(first, context) and result is first._full:
        return first  # the function worked in place, or changed nothing
    lent = [
        value
        for value in of_context(context, (args, kwargs))
        # strides could differ between ranks
        if _lies_in(result, value) or (value is first and may_copy(func))
    ]
    separate = [value for value in lent if value._full is not share(value)]
    # The view's memory was not shared with its base. Functions that return views can be called again.
    return _called(context, func, args, kwargs) if separate else result


def of_context(context: Context, values: Any) -> Iterator[GlobalTensor]:
    """Iterate over the global tensors in an argument list that belong to a context."""
    return (each for each in instances(GlobalTensor, values) if each._context is context)


def _called(context: Context, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a function to whole values, as the script does on one device."""
    clock = context.clock

    def whole(value: GlobalTensor) -> Any:
        return gathered(value) if value._context is context else value

    args, kwargs = _map(whole, args), _map(whole, kwargs)
    before = clock.enter(Activity.SCRIPT) if clock.armed else None
    result = func(*args, **kwargs)
    if before is not None:
        clock.enter(before)
    return result


def wrap(context: Context, local: torch.Tensor, layout: Layout, rules: dict[Any, Rule]) -> GlobalTensor:
    """Create the global tensor with `local` as this rank's shard.

    Args:
        context: the rank group over which the value is cut.
        local: rows of this rank; the graph of the result begins here.
        layout: cut of the global tensor; its axis `dim` has `layout.rows` rows over all ranks.
        rules: operations that run on rows, by torch function.
    """
    return shard_of(GlobalTensor, context, local, layout, rules)


def gather_ahead(value: GlobalTensor) -> None:
    """Start an asynchronous all-gather of a small tensor without a gradient."""
    context, layout, local = value._context, value._layout, value._local
    assert local is not None
    if len(layout.counts()) > 1:
        return
    out, pending = context.comm.all_gather_async(local)

    def arrive() -> torch.Tensor:
        pending.wait()
        return out.flatten(0, 1)

    value._ahead = arrive

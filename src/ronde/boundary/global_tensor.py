"""A global tensor: one value of which this rank holds the rows of its part of the batch.

For the script it is a `torch.Tensor` of the whole shape. An operation that has a rule (`rules/`) runs
on the rows; any other sees the whole value, gathered once. What C++ reaches past Python's
`__torch_function__` is served by `__torch_dispatch__`, and its gradients by the Gather node that made
the tensor. The idea of a global view of a sharded value is OneFlow's.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ronde.boundary.context import Context, Region
from ronde.boundary.deferred import DeferredScalar, resolve
from ronde.boundary.edges import Gather, Slice, gather_data
from ronde.boundary.guards import Refusal, memory
from ronde.boundary.kinds import METADATA, VIEWS, changes_first, lends_memory, may_copy, watches
from ronde.boundary.layout import Layout
from ronde.boundary.spelling import spelled
from ronde.boundary.tree import map_leaves
from ronde.errors import RondeError

__all__ = ["GlobalTensor", "Rule", "gather_ahead", "is_view", "localize", "materialize", "settled", "wrap"]

Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

# torch's own descriptors, which the class below overrides.
_PLAIN_GRAD: Any = torch.Tensor.grad
_PLAIN_DATA: Any = torch.Tensor.data  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True, slots=True)
class _Origin:
    """A tensor that another may be a view of, and how the other's whole value is made from its own."""

    base: weakref.ref[GlobalTensor]
    view: Callable[[torch.Tensor], torch.Tensor]
    # It is a matter of strides whether that is a view or a copy.
    may_copy: bool


class GlobalTensor(torch.Tensor):
    """See the module. Made by `wrap` alone."""

    _context: Context
    _layout: Layout
    _rules: dict[Any, Rule]
    # This rank's rows, part of the graph; see `_local`.
    _rows: torch.Tensor | None
    # The whole value, part of the graph, when it has been asked for, and its version then.
    _full: torch.Tensor | None
    _full_version: int
    # What this one may be a view of, the nearest first, and what may be views of it, the oldest first.
    _origins: list[_Origin]
    _views: list[weakref.ref[GlobalTensor]]
    # The whole value of a view lies in that of what it is a view of; else it was gathered for itself.
    _joined: bool
    # What this and another are views of; see `_keep`.
    _kept: GlobalTensor | None
    # Gives the whole value, for which a gather was started when the tensor was made.
    _ahead: Callable[[], torch.Tensor] | None

    @property
    def _local(self) -> torch.Tensor | None:
        """This rank's rows, part of the graph; None once the whole value is what the tensor is."""
        _notice(self)
        return self._rows

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DeferredScalar in types:
            args, kwargs = settled((args, kwargs))
        kwargs = kwargs or {}
        first = next(_each((args, kwargs)))
        context = first._context
        if context.region is Region.REHEARSAL:
            raise Refusal("it uses a batch that is not among its arguments")
        if context.region is Region.SHARDED:
            raise RondeError(
                "a model used a batch that is not among its arguments, as it did not in its rehearsal; "
                "pass it to the model as an argument"
            )
        if func in METADATA and isinstance(args[0], GlobalTensor):
            with DisableTorchFunctionSubclass():
                return func(args[0]._full if args[0]._local is None else args[0], *args[1:], **kwargs)
        if context.region is Region.SCRIPT and not context.in_transform():
            rule = first._rules.get(func)
            if rule is not None:
                args, kwargs = spelled(func, args, kwargs)
                result = rule(context, func, args, kwargs)
                if result is not NotImplemented:
                    return _remember_view(func, args, kwargs, result)
        return _on_whole_values(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*_map(_data, args), **_map(_data, kwargs))
        lent = [value for value in _each((args, kwargs)) if _lies_in(result, value)]
        if not lent or func._schema.is_mutable:
            return result
        for value in lent:
            _lent(value)
        return func(*_map(_data, args), **_map(_data, kwargs))

    # A tensor subclass with a Python `__torch_dispatch__` refuses these; the whole value does not.
    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return _lent(self).numpy(*args, **kwargs)

    def tolist(self) -> Any:
        return materialize(self).tolist()

    def data_ptr(self) -> int:
        return _lent(self).data_ptr()

    # These are set on the rows, through which every gradient comes: that of what was computed from them,
    # before or after, and that of the gathered value.
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

    # By torch's own name, for which there is a rule, also where a session has replaced the attribute.
    data: Any = property(  # pyright: ignore[reportIncompatibleVariableOverride]
        lambda self: self.__torch_function__(_PLAIN_DATA.__get__, (), (self,)), _PLAIN_DATA.__set__
    )

    def _rows_with_gradient(self) -> torch.Tensor | None:
        rows = self._local if self._context.region is Region.SCRIPT else None
        return None if rows is None or not rows.requires_grad else rows


def _hook_on_rows(value: GlobalTensor, hook: Callable[[Any], Any]) -> Callable[[torch.Tensor], Any]:
    context, layout, rules = value._context, value._layout, value._rules

    def on_rows(local: torch.Tensor) -> torch.Tensor | None:
        changed = hook(wrap(context, local / context.world_size, layout, rules))
        if changed is None:
            return None
        rows = localize(changed) if isinstance(changed, GlobalTensor) else cut(context, changed, layout)
        return rows * context.world_size

    return on_rows


def settled(value: Any) -> Any:
    """Arguments with every loss that is still under way waited for."""
    return map_leaves(lambda leaf: resolve(leaf) if isinstance(leaf, DeferredScalar) else leaf, value)


def _each(value: Any) -> Iterator[GlobalTensor]:
    """The global tensors in an argument list."""
    if isinstance(value, GlobalTensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _each(item)
    elif isinstance(value, dict):
        yield from _each(list(value.values()))


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
    if local is not None and local.requires_grad and value._full is None:
        return gather_data(value._context, local, value._layout)
    return _whole(value).detach()


def materialize(value: Any) -> Any:
    """The whole value as a plain tensor, with its graph; other values as they are."""
    if isinstance(value, DeferredScalar):
        return resolve(value)
    if not isinstance(value, GlobalTensor):
        return value
    _notice(value)
    return _whole(value)


def _whole(value: GlobalTensor) -> torch.Tensor:
    if value._full is None:
        # Inside torch.func's transforms too, this is a value from outside of them.
        with temporarily_clear_interpreter_stack():
            _set_whole(value, _gathered(value))
    assert value._full is not None
    return value._full


def _set_whole(value: GlobalTensor, full: torch.Tensor) -> None:
    value._full, value._full_version = full, _version(full)


def _gathered(value: GlobalTensor) -> torch.Tensor:
    local = value._rows
    assert local is not None
    if value._ahead is not None:
        return value._ahead()
    with torch.inference_mode(local.is_inference() and torch.is_inference_mode_enabled()):
        if not local.requires_grad:
            return gather_data(value._context, local, value._layout)
        with torch.enable_grad():
            return Gather.apply(local, value._context, value._layout)


def localize(value: Any) -> Any:
    """This rank's rows as a plain tensor, with its graph; other values as they are."""
    if not isinstance(value, GlobalTensor):
        return value
    if value._local is not None:
        return value._local
    full = value._full
    assert full is not None
    return cut(value._context, full, value._layout)


def cut(context: Context, full: torch.Tensor, layout: Layout) -> torch.Tensor:
    """This rank's rows of a replicated value, with the Slice edge when a gradient flows."""
    if full.requires_grad and torch.is_grad_enabled():
        if full.is_leaf and context.gradient_factor == 1:
            context.adopt(full)
        return Slice.apply(full, context, layout)
    return layout.take(full, context.rank)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _lineage(value: GlobalTensor) -> Iterator[tuple[GlobalTensor, _Origin]]:
    """What the tensor may be a view of, as far as the script still has it, the nearest first."""
    for origin in value._origins:
        base = origin.base()
        if base is not None:
            yield base, origin


def _line(value: GlobalTensor) -> Iterator[GlobalTensor]:
    """The tensor, and what it may be a view of."""
    yield value
    for base, _ in _lineage(value):
        yield base


def is_view(value: GlobalTensor) -> bool:
    """Whether the tensor may be a view of another that the script still has."""
    return any(True for _ in _lineage(value))


def _agree_on_origins(value: GlobalTensor) -> None:
    """Pass over what a rank's collector has taken: it comes at other moments on others, and what is gathered
    depends on it. What is gone on one rank no script can reach on any."""
    if value._rows is None or not value._origins:
        return
    there = [origin.base() is not None for origin in value._origins]
    counts = value._context.comm.votes(there)
    world_size = value._context.world_size
    value._origins = [
        origin for origin, count in zip(value._origins, counts, strict=True) if count == world_size
    ]


def _root(value: GlobalTensor) -> GlobalTensor:
    return list(_line(value))[-1]


def _changed(value: GlobalTensor) -> bool:
    """The script changed the whole value, by a view of it or by a function that works in place."""
    return value._full is not None and _version(value._full) != value._full_version


def _notice(value: GlobalTensor) -> None:
    """If the tensor, or what it is a view of, was changed, its rows are not what it is any more."""
    if value._full is None and not value._origins:
        return
    if any(member._rows is not None and _changed(member) for member in _line(value)):
        _hold_whole(value)


def _hold_whole(value: GlobalTensor) -> torch.Tensor:
    """From now on the tensor, and what shares memory with it, is the whole value: it is about to change,
    or has been changed."""
    _agree_on_origins(value)
    return _hold_all(value, _root(value))


def _hold_all(value: GlobalTensor, root: GlobalTensor) -> torch.Tensor:
    """The same where ranks agree already on what it is a view of."""
    late = _changed(root)
    _whole(root)
    root._rows = None
    for reference in root._views:
        view = reference()
        if view is not None and view._rows is not None:
            _join(view, late)
    return _whole(value)


def _join(view: GlobalTensor, late: bool = False) -> None:
    """Let a view's whole value lie in that of what it is a view of, and be what the view is from now on.

    With `late` that other one has been changed already; the rows of what turns out to be a copy are right.
    """
    base, origin = next(_lineage(view))
    if not view._joined:
        written = view._full if _changed(view) else None
        own = _whole(view) if late and origin.may_copy else None
        assert base._full is not None
        with temporarily_clear_interpreter_stack():
            full = origin.view(base._full)
        if own is None or memory(full) == memory(base._full):
            _set_whole(view, full)
        if written is not None:
            with torch.set_grad_enabled(written.requires_grad):
                full.copy_(written)
        view._joined = True
    view._rows = None


def _shared(value: GlobalTensor) -> torch.Tensor:
    """The whole value, in memory in which a write changes all that shares it.

    It is about to be in the script's hands as a plain tensor. Without a gradient all that shares it is this
    memory from now on. With one only the views on the way are: versions tell of writes, and what a model
    returned is looked at more often than it is written to.
    """
    _agree_on_origins(value)
    root = _root(value)
    if root._rows is not None and not root._rows.requires_grad:
        return _hold_all(value, root)
    line = list(_line(value))
    if value is root or any(_watched(member) for member in line[:-1]):
        return materialize(value)
    materialize(root)
    for view in reversed(line[:-1]):
        if view._rows is not None:
            _join(view)
    return _whole(value)


def _watched(value: GlobalTensor) -> bool:
    """The script waits for the gradient of the rows, so every gradient has to come through them."""
    rows = value._rows
    return rows is not None and rows.requires_grad and bool(rows._backward_hooks or rows.retains_grad)


def _lent(value: GlobalTensor) -> torch.Tensor:
    """The whole value, whose memory is about to be handed out: what is written there is not seen to be.

    So from now on the tensor is that memory, if it is a batch. What a model returned with a gradient stays
    in rows: it is looked at as an array in every loop, and written to in none.
    """
    root = _root(value)
    full = materialize(value)
    return full if root._rows is None or root._rows.requires_grad else _hold_whole(value)


def _lies_in(result: Any, value: GlobalTensor) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_lies_in(item, value) for item in result)
    full = value._full
    if full is None or not isinstance(result, torch.Tensor) or isinstance(result, GlobalTensor):
        return False
    place = memory(result)
    return place is not None and place == memory(full)


def _remember_view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Where a rule's result shares memory with its argument, a change of one must become a change of both.

    Whether it does share is known when the same function is applied to the whole value: by the strides
    of their shards ranks could come to different answers.
    """
    if getattr(func, "__name__", "") not in VIEWS:
        return result
    base = args[0]
    if not isinstance(result, GlobalTensor) or not isinstance(base, GlobalTensor) or result is base:
        return result
    rows, base_rows = result._rows, base._rows
    assert rows is not None
    assert base_rows is not None
    if rows.dtype != base_rows.dtype or rows.device != base_rows.device:
        return result  # surely a copy
    others = [_stand_in(value) for value in args[1:]]
    named = {name: _stand_in(value) for name, value in kwargs.items()}
    graph = torch.is_grad_enabled()

    def same_view(full: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(graph):
            return func(full, *others, **named)

    nearest = _Origin(weakref.ref(base), same_view, may_copy(func))
    result._origins = [nearest, *(_through(nearest, origin) for _, origin in _lineage(base))]
    _keep(base, result)
    for ancestor, _ in _lineage(result):
        ancestor._views = [reference for reference in ancestor._views if reference() is not None]
        ancestor._views.append(weakref.ref(result))
    return result


def _keep(base: GlobalTensor, view: GlobalTensor) -> None:
    """One of two views keeps what both are views of: else, once the script drops it, a write into one of them
    could not be brought to the other.

    Only one that has its memory and its graph anyway does: no copy, and nothing detached.
    """
    others = [other for reference in base._views if (other := reference()) is not None]
    sibling = next((other for other in others if next(_lineage(other))[0] is base), None)
    if sibling is None or base._rows is None:
        return
    for keeper in (view, sibling):
        _, origin = next(_lineage(keeper))
        rows = keeper._rows
        if rows is not None and not origin.may_copy and rows.requires_grad == base._rows.requires_grad:
            keeper._kept = base
            return


def _stand_in(value: Any) -> Any:
    """Of another tensor only its shape, type and device matter to a view."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty((), dtype=value.dtype, device=value.device).expand(value.shape)


def _through(nearest: _Origin, farther: _Origin) -> _Origin:
    """A view of a view."""
    return _Origin(
        farther.base, lambda full: nearest.view(farther.view(full)), nearest.may_copy or farther.may_copy
    )


def _on_whole_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call() -> Any:
        return func(*_map(materialize, args), **_map(materialize, kwargs))

    first = args[0] if args else kwargs.get("input")
    for changed in _each(kwargs.get("out")):
        _hold_whole(changed)
    if changes_first(func, kwargs):
        for changed in _each(first):
            _hold_whole(changed)
    elif isinstance(first, GlobalTensor) and watches(func):
        materialize(first)
        first._rows = None
    elif isinstance(first, GlobalTensor) and lends_memory(func):
        _lent(first)
    result = call()
    if isinstance(first, GlobalTensor) and result is first._full:
        return first  # it worked in place, or had nothing to do
    lent = [
        value
        for value in _each((args, kwargs))
        if _lies_in(result, value) or (value is first and may_copy(func))  # strides could tell ranks apart
    ]
    alone = [value for value in lent if value._full is not _shared(value)]
    # Such a result lay in memory that a view had for itself. What gives views can be called again.
    return call() if alone else result


class _Shell(torch.autograd.Function):
    """Makes the outer tensor, so that what holds it past Python still finds the Gather edge."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, context: Context, layout: Layout) -> torch.Tensor:
        ctx.context, ctx.layout = context, layout
        return _shell(local, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return Slice.apply(grad, ctx.context, ctx.layout) * ctx.context.world_size, None, None


def _shell(local: torch.Tensor, layout: Layout) -> torch.Tensor:
    with DisableTorchFunctionSubclass():
        return torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            GlobalTensor, layout.global_shape(local.shape), dtype=local.dtype, device=local.device
        )


def wrap(context: Context, local: torch.Tensor, layout: Layout, rules: dict[Any, Rule]) -> GlobalTensor:
    """The global tensor of which `local` is this rank's shard, cut as `layout` says."""
    shell: Any = (
        _Shell.apply(local, context, layout)
        if local.requires_grad and torch.is_grad_enabled()
        else _shell(local, layout)
    )
    shell._context, shell._layout, shell._rules = context, layout, rules
    shell._rows, shell._full, shell._full_version = local, None, 0
    shell._origins, shell._views, shell._joined, shell._ahead = [], [], False, None
    shell._kept = None
    return shell


def gather_ahead(value: GlobalTensor) -> None:
    """Start to gather a small tensor without a gradient now; by the time it is asked for, it is there."""
    context, layout, local = value._context, value._layout, value._local
    assert local is not None
    if len({layout.count(rank) for rank in range(layout.world_size)}) > 1:
        return
    out, pending = context.comm.all_gather_async(local)

    def arrive() -> torch.Tensor:
        pending.wait()
        return out.flatten(0, 1)

    value._ahead = arrive

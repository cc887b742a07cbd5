"""A global tensor: one value of which this rank holds the rows of its part of the batch.

For the script it is a `torch.Tensor` of the whole shape. An operation that has a rule (`rules/`) runs
on the rows; any other sees the whole value, gathered once. What C++ reaches past Python's
`__torch_function__` is served by `__torch_dispatch__`, and its gradients by the Gather node that made
the tensor. The idea of a global view of a sharded value is OneFlow's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
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

__all__ = ["GlobalTensor", "Rule", "gather_ahead", "localize", "materialize", "settled", "wrap"]

Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

# torch's own descriptors, which the class below overrides.
_PLAIN_GRAD: Any = torch.Tensor.grad
_PLAIN_DATA: Any = torch.Tensor.data  # pyright: ignore[reportAttributeAccessIssue]


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
    # The global tensor that this one may be a view of, and how to make the same view of its whole value.
    _origin: tuple[weakref.ref[GlobalTensor], Callable[[torch.Tensor], torch.Tensor]] | None
    _views: list[weakref.ref[GlobalTensor]]
    # Gives the whole value, for which a gather was started when the tensor was made.
    _ahead: Callable[[], torch.Tensor] | None

    @property
    def _local(self) -> torch.Tensor | None:
        """This rank's rows, part of the graph; None once the whole value is what the tensor is."""
        if self._rows is not None and self._full is not None and _version(self._full) != self._full_version:
            # The script changed it, by a view of it or by a function that works in place.
            if self._origin is None:
                _hold_whole(self)
            self._rows = None
        return self._rows

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DeferredScalar in types:
            args, kwargs = settled((args, kwargs))
        kwargs = kwargs or {}
        first = _first(args, kwargs)
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
        return func(*_map(_data, args), **_map(_data, kwargs or {}))

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


def _first(args: Any, kwargs: Any) -> GlobalTensor:
    for value in (*args, *kwargs.values()):
        found = _find(value)
        if found is not None:
            return found
    raise TypeError("no global tensor among the arguments")


def _find(value: Any) -> GlobalTensor | None:
    if isinstance(value, GlobalTensor):
        return value
    if isinstance(value, (tuple, list)):
        for item in value:
            found = _find(item)
            if found is not None:
                return found
    if isinstance(value, dict):
        return _find(list(value.values()))
    return None


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
    if value._full is not None:
        return value._full.detach()
    assert value._local is not None
    return gather_data(value._context, value._local, value._layout)


def materialize(value: Any) -> Any:
    """The whole value as a plain tensor, with its graph; other values as they are."""
    if isinstance(value, DeferredScalar):
        return resolve(value)
    if not isinstance(value, GlobalTensor):
        return value
    if value._full is None:
        # Inside torch.func's transforms too, this is a value from outside of them.
        with temporarily_clear_interpreter_stack():
            value._full = _gathered(value)
        value._full_version = _version(value._full)
    return value._full


def _gathered(value: GlobalTensor) -> torch.Tensor:
    local = value._local
    assert local is not None
    if value._ahead is not None:
        return value._ahead()
    if local.requires_grad:
        with torch.enable_grad():
            return Gather.apply(local, value._context, value._layout)
    return gather_data(value._context, local, value._layout)


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


def _hold_whole(value: GlobalTensor) -> torch.Tensor:
    """From now on the tensor, and what shares memory with it, is the whole value: it is about to change."""
    root = _root(value)
    full = materialize(root)
    root._rows = None
    for reference in root._views:
        view = reference()
        if view is not None and view._rows is not None and view._origin is not None:
            view._full, view._rows = view._origin[1](full), None
    assert value._full is not None
    return value._full


def _lent(value: GlobalTensor) -> torch.Tensor:
    """The whole value, whose memory is about to be handed out: what is written there is not seen to be.

    So from now on the tensor is that memory, if it is a batch. What a model returned with a gradient stays
    in rows: it is looked at as an array in every loop, and written to in none.
    """
    root = _root(value)
    full = materialize(value)
    if root._rows is None or root._rows.requires_grad:
        return full
    if (root.device, root.dtype) == (value.device, value.dtype):
        return _hold_whole(value)
    value._rows = None  # a copy
    return full


def _is_lent(func: Any, result: Any, value: GlobalTensor) -> bool:
    """Whether a function of the whole value gave a plain tensor that lies in its memory, on any rank."""
    if isinstance(result, (tuple, list)):
        return any(_is_lent(func, item, value) for item in result)
    full = value._full
    if full is None or not isinstance(result, torch.Tensor) or isinstance(result, GlobalTensor):
        return False
    if may_copy(func):
        return True  # strides could tell ranks apart
    place = memory(result)
    return place is not None and place == memory(full)


def _root(value: GlobalTensor) -> GlobalTensor:
    root = None if value._origin is None else value._origin[0]()
    return value if root is None else root


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
    others, graph = args[1:], torch.is_grad_enabled()
    root = _root(base)
    before = base._origin[1] if base._origin is not None and root is not base else None

    def same_view(full: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(graph):
            whole = full if before is None else before(full)
            return func(whole, *_map(materialize, others), **_map(materialize, kwargs))

    result._origin = (weakref.ref(root), same_view)
    root._views = [reference for reference in root._views if reference() is not None]
    root._views.append(weakref.ref(result))
    return result


def _on_whole_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = kwargs.get("out")
    if isinstance(out, GlobalTensor):
        kwargs = {**kwargs, "out": _hold_whole(out)}
    if args and isinstance(args[0], GlobalTensor) and (watches(func) or changes_first(func)):
        if watches(func):
            full = materialize(args[0])
            args[0]._rows = None
        else:
            full = _hold_whole(args[0])
        result = func(full, *_map(materialize, args[1:]), **_map(materialize, kwargs))
        return args[0] if result is full else result
    if args and isinstance(args[0], GlobalTensor) and lends_memory(func):
        args = (_lent(args[0]), *args[1:])
    result = func(*_map(materialize, args), **_map(materialize, kwargs))
    if args and isinstance(args[0], GlobalTensor):
        if result is args[0]._full:
            return args[0]  # it worked in place, or had nothing to do
        if _is_lent(func, result, args[0]):
            _lent(args[0])
    return result


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
    shell._origin, shell._views, shell._ahead = None, [], None
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

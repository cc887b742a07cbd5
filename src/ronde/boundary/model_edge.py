"""The model edge: where global tensors become this rank's rows and outputs become global again.

`torch.nn.Module.__call__` is replaced, and the outermost call with a batch among its arguments is cut when
its rehearsal allows it. A module that cannot be cut as one piece runs *in parts*: its own body is carried
out on global values, as a script is, and the modules inside it get their own chance. That is right for
every module; what it costs is gathering where the body needs the whole batch.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.boundary.context import Context, Region
from ronde.boundary.deferred import DeferredScalar
from ronde.boundary.global_tensor import GlobalTensor, Rule, cut, localize, materialize, settled, wrap
from ronde.boundary.graph import leaves_behind, now
from ronde.boundary.layout import Layout
from ronde.boundary.patches import Patches
from ronde.boundary.randomness import RankStream, SlicedDraws
from ronde.boundary.rehearsal import Verdict, rehearse
from ronde.boundary.rules.common import enter
from ronde.boundary.tree import Opaque, leaves, map_leaves, structure

__all__ = ["ModelEdge"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """What of a call's arguments is the batch.

    Attributes:
        rows: global rows, the unit in which ranks are given their part.
        inner: entries of the batch axis for each row (1, or T where `[B, T]` was flattened).
        axes: the batch axis of every leaf, None for leaves that enter whole.
    """

    rows: int
    inner: int
    axes: tuple[int | None, ...]


class ModelEdge:
    """Decides how module calls run; one per session.

    Args:
        rules: the operations that keep outputs sharded.
        stream: the rank's own generator for draws inside models, or None for `rng=global`.
    """

    def __init__(self, context: Context, rules: dict[Any, Rule], stream: RankStream | None) -> None:
        self._context = context
        self._rules = rules
        self._stream = stream
        self._verdicts: weakref.WeakKeyDictionary[torch.nn.Module, dict[Any, Verdict]] = (
            weakref.WeakKeyDictionary()
        )
        self._adopted: weakref.WeakKeyDictionary[torch.nn.Module, list[Verdict]] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        plain: Callable[..., Any] = torch.nn.Module.__call__
        context = self._context

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if context.region is not Region.SCRIPT or not context.on_main_thread():
                return plain(module, *args, **kwargs)
            return self._call(plain, module, args, kwargs)

        patches.set(torch.nn.Module, "__call__", call)

    def _call(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if type(module).__module__ in _HANDLED_BY_RULES or self._context.in_transform():
            return plain(module, *args, **kwargs)
        try:
            values = list(leaves((args, kwargs)))
        except Opaque:
            return plain(module, *args, **kwargs)
        if any(isinstance(value, DeferredScalar) for value in values):
            args, kwargs = settled((args, kwargs))
            values = list(leaves((args, kwargs)))
        batch = self._find_batch(values)
        if batch is None:
            return plain(module, *args, **kwargs)
        if module.training and torch.is_grad_enabled():
            self._context.tally.train_on(batch.rows)
        if batch.rows < self._context.world_size:
            with self._context.enter(Region.REPLICATED, None):
                whole_args, whole_kwargs = map_leaves(materialize, (args, kwargs))
                return plain(module, *whole_args, **whole_kwargs)
        verdict = self._verdict(plain, module, (args, kwargs), values, batch)
        if verdict.sharded:
            return self._sharded(plain, module, (args, kwargs), batch, verdict)
        before, self._context.rows = self._context.rows, batch.rows
        try:
            return plain(module, *args, **kwargs)
        finally:
            self._context.rows = before

    def _find_batch(self, values: list[Any]) -> _Batch | None:
        """The batch among the leaves of a call's arguments, or None when there is none."""
        dim = self._context.batch_dim
        held = [value for value in values if isinstance(value, GlobalTensor)]
        if held:
            first = held[0]._layout
            if first.outer != 1 or not all(value._layout.same_cut(first) for value in held):
                return None
            rows, inner = first.rows, first.inner
        else:
            sizes = [
                value.shape[dim] for value in values if isinstance(value, torch.Tensor) and value.dim() > dim
            ]
            if not sizes:
                return None
            rows, inner = self._context.rows or sizes[0], 1
            if rows not in sizes:
                return None
        axes = tuple(_axis(value, rows * inner, dim) for value in values)
        return _Batch(rows, inner, axes)

    def _verdict(
        self, plain: Any, module: torch.nn.Module, call: Any, values: list[Any], batch: _Batch
    ) -> Verdict:
        known = self._verdicts.setdefault(module, {})
        key = _signature(module, call, values, batch, exact=len(known) < _MANY_SIGNATURES)
        if key not in known:
            known[key] = verdict = self._rehearsed(plain, module, call, values, batch)
            name = type(module).__name__
            if not verdict.sharded:
                self._context.note(f"{name} runs in parts, not as one piece: {verdict.reason}")
        return known[key]

    def _rehearsed(
        self, plain: Any, module: torch.nn.Module, call: Any, values: list[Any], batch: _Batch
    ) -> Verdict:
        if any(_has_user_hooks(part) for part in module.modules()):
            return Verdict(False, "it has hooks, which are to see the whole batch")
        few = [_some_rows(value, axis) for value, axis in zip(values, batch.axes, strict=True)]

        def run(twin: torch.nn.Module, leaf_values: list[Any]) -> Any:
            remaining = iter(leaf_values)
            args, kwargs = map_leaves(lambda _: next(remaining), call)
            return plain(twin, *args, **kwargs)

        rows = min(value.shape[axis] for value, axis in zip(few, batch.axes, strict=True) if axis is not None)
        verdict = rehearse(self._context, module, run, few, batch.axes, rows)
        others = _other_axes(values, batch)
        if verdict.sharded or others == batch.axes:
            return verdict
        second = rehearse(self._context, module, run, few, others, rows)
        return second if second.sharded else verdict

    def _sharded(
        self, plain: Any, module: torch.nn.Module, call: Any, batch: _Batch, verdict: Verdict
    ) -> Any:
        context = self._context
        axes = iter(verdict.inputs)
        args, kwargs = map_leaves(lambda value: self._local(value, next(axes), batch), call)
        if torch.is_grad_enabled():
            self._adopt(module)
        start = now()
        with (
            context.enter(Region.SHARDED, batch.rows),
            self._drawing(verdict, batch.rows),
            self._entered(module),
        ):
            output = plain(module, *args, **kwargs)
        context.tally.cut(type(module).__name__)
        if verdict not in self._adopted.setdefault(module, []):
            # Once: leaves that are no parameters of the module, but its attributes or global variables.
            self._adopted[module].append(verdict)
            for leaf in leaves_behind(leaves(output), start):
                context.adopt(leaf)
        outputs = iter(verdict.outputs)
        return map_leaves(lambda value: self._global(value, next(outputs), batch.rows), output)

    @contextmanager
    def _entered(self, module: torch.nn.Module) -> Iterator[None]:
        """Inside, parameters in the midst of a graph (`functional_call`) have passed the Enter edge."""
        swapped: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        if torch.is_grad_enabled():
            for part in module.modules():
                for name, value in part._parameters.items():
                    if value is not None and value.grad_fn is not None:
                        swapped.append((part._parameters, name, value))
        try:
            for members, name, value in swapped:
                members[name] = enter(self._context, value)  # pyright: ignore[reportArgumentType]
            yield
        finally:
            for members, name, value in swapped:
                members[name] = value  # pyright: ignore[reportArgumentType]

    def _drawing(self, verdict: Verdict, rows: int) -> Any:
        if not verdict.draws:
            return _nothing
        if self._stream is not None:
            return self._stream
        return SlicedDraws(verdict.draws, self._context.layout(0, rows), self._context.rank)

    def _local(self, value: Any, axis: int | None, batch: _Batch) -> Any:
        if isinstance(value, GlobalTensor):
            return localize(value)
        if not isinstance(value, torch.Tensor):
            return value
        if axis is None:
            return enter(self._context, value)
        layout = self._context.layout(axis, batch.rows, inner=batch.inner)
        # A copy that lies in memory as the whole does, so that `view` and random fills do the same.
        rows = cut(self._context, value, layout)
        return rows if rows.requires_grad else rows.clone()

    def _global(self, value: Any, axis: Any, rows: int) -> Any:
        if not isinstance(value, torch.Tensor) or axis.dim is None:
            return value
        mine = self._context.layout(0, rows).count(self._context.rank)
        others = value.shape[axis.dim] // mine
        outer, inner = (others, 1) if axis.outer_first else (1, others)
        layout = Layout(axis.dim, rows, self._context.world_size, outer, inner)
        return wrap(self._context, value, layout, self._rules)

    def _adopt(self, module: torch.nn.Module) -> None:
        """Gradients of these parameters will differ between ranks, whoever updates them."""
        for part in module.modules():
            for parameter in part._parameters.values():
                if parameter is not None and parameter.requires_grad:
                    self._context.adopt(parameter)


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


_nothing = _Nothing()

# torch's losses are functions of global tensors that have rules of their own.
_HANDLED_BY_RULES = {"torch.nn.modules.loss"}


def _axis(value: Any, length: int, dim: int) -> int | None:
    if isinstance(value, GlobalTensor):
        return value._layout.dim
    if isinstance(value, torch.Tensor) and value.dim() > dim and value.shape[dim] == length:
        return dim
    return None


def _other_axes(values: list[Any], batch: _Batch) -> tuple[int | None, ...]:
    """The batch where it is not in front: a recurrent network's hidden state is [layers, batch, features]."""

    def place(value: Any, axis: int | None) -> int | None:
        if axis is not None or not isinstance(value, torch.Tensor):
            return axis
        fitting = [dim for dim, size in enumerate(value.shape) if size == batch.rows * batch.inner]
        return fitting[0] if fitting else None

    return tuple(place(value, axis) for value, axis in zip(values, batch.axes, strict=True))


def _some_rows(value: Any, axis: int | None) -> Any:
    """Rows for a rehearsal: this rank's own, or the whole where a rank has fewer than two."""
    if axis is None or not isinstance(value, GlobalTensor):
        return value
    layout = value._layout
    fewest = min(layout.count(rank) for rank in range(layout.world_size))
    return (localize(value) if fewest >= 2 else materialize(value)).detach()


def _has_user_hooks(part: torch.nn.Module) -> bool:
    kinds = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    on_gradients = any(
        parameter is not None and parameter._backward_hooks for parameter in part._parameters.values()
    )
    return on_gradients or any(not _is_torchs(hook) for hooks in kinds if hooks for hook in hooks.values())


def _is_torchs(hook: Any) -> bool:
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return owner.split(".")[0] == "torch"


def _signature(module: torch.nn.Module, call: Any, values: list[Any], batch: _Batch, *, exact: bool) -> Any:
    described = tuple(
        (value.dtype, value.dim(), value.requires_grad)
        if isinstance(value, torch.Tensor)
        else _kind(value, exact)
        for value in values
    )
    modes = tuple((part.training, _has_user_hooks(part)) for part in module.modules())
    return structure(call), described, batch.axes, modes, torch.is_grad_enabled(), batch.rows < 4


def _kind(value: Any, exact: bool) -> Any:
    """A flag or a number may choose another branch; a number that changes at every call is given up on."""
    if isinstance(value, (bool, str, type(None))) or (exact and isinstance(value, (int, float))):
        return value
    return type(value)


_MANY_SIGNATURES = 16

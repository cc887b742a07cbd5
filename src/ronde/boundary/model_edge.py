"""The model edge: where global tensors become this rank's rows and outputs become global again.

`torch.nn.Module.__call__` is replaced, and the outermost call with a batch among its arguments is cut when
its rehearsal allows it. A module that cannot be cut as one piece runs *in parts*: its own body is carried
out on global values, as a script is, and the modules inside it get their own chance. That is right for
every module; what it costs is gathering where the body needs the whole batch.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy
import torch

from ronde.boundary.compiled import aside, is_compiled, uncompiled
from ronde.boundary.context import Context, Region
from ronde.boundary.deferred import DeferredScalar
from ronde.boundary.fast_path import may_take_fast_path
from ronde.boundary.fingerprint import require_alike
from ronde.boundary.global_tensor import GlobalTensor, Rule, cut, localize, materialize, settled, wrap
from ronde.boundary.graph import leaves_behind, now
from ronde.boundary.layout import Layout, laid
from ronde.boundary.modes_first import modes_first
from ronde.boundary.onlookers import onlooker
from ronde.boundary.output_axis import OutputAxis
from ronde.boundary.patches import Patches
from ronde.boundary.randomness.rank_stream import RankStream
from ronde.boundary.rehearsal.candidates import Batch, batches
from ronde.boundary.rehearsal.listed import LISTED, are_samples, listed_samples
from ronde.boundary.rehearsal.rehearse import Verdict
from ronde.boundary.rehearsal.verdicts import Verdicts, is_computed_whole
from ronde.boundary.rules.common import enter
from ronde.boundary.sharded_call import ShardedCall, Way, another_form, at_once
from ronde.boundary.small_batches import SmallBatches
from ronde.boundary.tensor_class import alike, as_plain, own_class, plain
from ronde.boundary.torchscript import is_about_to_trace, is_training
from ronde.boundary.tree import Opaque, leaves, map_leaves
from ronde.boundary.views import notice_writes_past_graph
from ronde.errors import RondeError
from ronde.trace.step_clock import Part

__all__ = ["ModelEdge"]


class ModelEdge:
    """Decides how module calls run; one per session.

    Args:
        rules: the operations that keep outputs sharded.
        stream: the rank's own generator for draws inside models, or None for `rng=global`.
        way: how a call on this rank's rows is carried out.
        calling: what is to stand around every call of a model as one piece.
    """

    def __init__(
        self,
        context: Context,
        rules: dict[Any, Rule],
        stream: RankStream | None,
        way: Way = at_once,
        calling: Callable[[torch.nn.Module], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._context = context
        self._way = way
        self._calling = calling
        self._rules = rules
        self._stream = stream
        self._verdicts = Verdicts(context, torch.nn.Module.__call__)
        self._small_batches = SmallBatches()
        # Inside a module that is given one sample, of which the layers see the features as a vector.
        self._in_one_sample = False
        self._adopted: weakref.WeakKeyDictionary[torch.nn.Module, list[Verdict]] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        plain: Callable[..., Any] = torch.nn.Module.__call__
        context = self._context

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # Nearly all calls are such, so it is asked first and quickly; for any thread the answer is this.
            if context.main_region is not Region.SCRIPT:
                if context.function and context.on_main_thread():
                    context.called_in.setdefault(context.function)
                return plain(module, *args, **kwargs)
            if not context.on_main_thread():
                context.called_beside = True
                return plain(module, *args, **kwargs)
            if context.until_backward:
                notice_writes_past_graph(context)
            if context.clock.armed:
                context.clock.enter(Part.SCRIPT)
            return self._call(plain, module, args, kwargs)

        patches.set(torch.nn.Module, "__call__", call)
        self._install_register_hook(patches)

    def conclude(self) -> None:
        """At the end of a run: say of its calls what is known by then only."""
        self._verdicts.conclude()
        context = self._context
        said = self._small_batches.sentence(context.world_size)
        # Where nothing was cut and no module is to blame, it is said that there were no larger batches.
        if said and (context.tally.sharded or context.explained or context.uncut):
            context.note(said)

    def _install_register_hook(self, patches: Patches) -> None:
        plain: Any = torch.Tensor.register_hook
        context = self._context

        def register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            if context.region is not Region.SCRIPT or not context.on_main_thread():
                return plain(tensor, hook)
            context.gradients_watched = True
            if not isinstance(tensor, torch.nn.Parameter):
                return plain(tensor, hook)
            calls = context.model_calls

            def checked(gradient: torch.Tensor) -> Any:
                if calls and context.model_calls == calls:
                    raise RondeError(
                        f"a hook was registered on a parameter of shape {list(tensor.shape)} between a "
                        f"forward pass and its backward, where it would see the gradient of one rank's "
                        f"rows; register it before the forward pass"
                    )
                return hook(gradient)

            return plain(tensor, checked)

        patches.set(torch.Tensor, "register_hook", modes_first(register_hook))

    def _call(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if self._context.samples or type(module).__module__ in _HANDLED_BY_RULES:
            return plain(module, *args, **kwargs)
        if self._context.in_transform():
            self._note_uncut(_IN_TRANSFORM)
            return plain(module, *args, **kwargs)
        if self._context.carries_tangents():
            self._note_uncut(_WITH_TANGENTS)
            return self._replicated(plain, module, (args, kwargs))
        if torch.jit.is_tracing():
            return plain(module, *args, **kwargs)
        if is_about_to_trace(module):
            return self._replicated(plain, module, (args, kwargs))
        try:
            values = list(leaves((args, kwargs)))
        except Opaque as opaque:
            with self._verdicts.opaque(module, str(opaque)):
                return _body(plain, module)(*args, **kwargs)
        return self._taken_apart(plain, module, args, kwargs, values)

    def _taken_apart(
        self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any, values: list[Any]
    ) -> Any:
        """A call of which the leaves are known."""
        if any(isinstance(value, DeferredScalar) for value in values):
            args, kwargs = settled((args, kwargs))
            values = list(leaves((args, kwargs)))
        found = batches(values, self._context.batch_dim, self._context.rows)
        if not found:
            with self._verdicts.arrays(module) if any(map(_is_array, values)) else nullcontext():
                return plain(module, *args, **kwargs)
        listed = None if module in self._adopted else listed_samples(args, kwargs)
        # Of one row nothing can be tried, and on one rank too there is nothing to cut.
        least = max(self._context.world_size, 2)
        large = [batch for batch in found if batch.rows >= least and not (batch.searched and listed)]
        self._context.model_calls += 1
        if self._context.on_call is not None:
            self._context.on_call(module)
        seen_by = onlooker()
        if seen_by is not None:
            self._note_uncut(
                f"{seen_by} sees what models compute, which on shards would be one rank's rows: every rank "
                f"computes the whole batch there, right but no faster"
            )
        too_few = not (large or listed) or self._verdicts.has_too_few(module, found, least)
        if seen_by is not None or any(map(_is_nested, values)) or too_few:
            self._tally(module, found[0].rows, small=too_few and seen_by is None)
            return self._replicated(plain, module, (args, kwargs))
        if self._in_one_sample and large and large[0].only_vectors(values) and all(map(_is_real, values)):
            return self._replicated(plain, module, (args, kwargs))
        # Along the first axis it is one row, say: what lies on the second need not be a batch.
        small = bool(large) and large[0] is not found[0] and not found[0].searched
        if large:
            verdict = self._verdicts.of(
                module, (args, kwargs), values, large, optional=small, listed=bool(listed)
            )
        else:
            verdict = self._verdicts.listed(module, said=are_samples(values))
        if verdict.sharded:
            batch = large[verdict.candidate]
            self._tally(module, batch.rows)
            return self._sharded(plain, module, (args, kwargs), batch, verdict)
        if listed:
            # What was taken for rows may be the colours of an image.
            whole = verdict.reason != LISTED and large[0].all_cut(values)
            samples, rows = large[0].rows if whole else listed, None
        elif verdict.raised and large[0].only_vectors(values):
            # One sample, or many laid end to end: how many is known when something is called on them.
            samples, rows = _samples(values, found[0]), None
        elif is_computed_whole(self._context, module, large[verdict.candidate], verdict):
            self._tally(module, large[verdict.candidate].rows)
            return self._replicated(plain, module, (args, kwargs))
        else:
            samples, rows = (
                _samples(values, large[verdict.candidate] if verdict.apart else found[0]),
                large[verdict.candidate].rows,
            )
        self._tally(module, samples, small=small)
        # The body of TorchScript is not Python's to carry out.
        if small or isinstance(module, torch.jit.ScriptModule) or may_take_fast_path(module):
            return self._replicated(plain, module, (args, kwargs))
        before, self._context.rows = self._context.rows, rows
        around, self._in_one_sample = self._in_one_sample, rows is None and samples == 1
        try:
            with self._verdicts.inside(module, verdict):
                return _body(plain, module)(*args, **kwargs)
        finally:
            self._context.rows, self._in_one_sample = before, around

    def _note_uncut(self, why: str) -> None:
        self._context.uncut = True
        self._context.note(why)

    def _tally(self, module: torch.nn.Module, rows: int, *, small: bool = False) -> None:
        training = is_training(module)
        if training and torch.is_grad_enabled():
            self._context.tally.train_on(rows)
            if not self._verdicts.are_around():
                self._small_batches.count(small=small)
        elif not training and not torch.is_grad_enabled():
            # With gradients a script may train: it has called `eval()` once and never `train()` again.
            self._context.tally.evaluate()

    def _replicated(self, plain: Callable[..., Any], module: torch.nn.Module, call: Any) -> Any:
        with self._context.enter(Region.REPLICATED, None), self._calling(module):
            args, kwargs = map_leaves(materialize, call)
            return plain(module, *args, **kwargs)

    def _sharded(
        self, plain: Callable[..., Any], module: torch.nn.Module, call: Any, batch: Batch, verdict: Verdict
    ) -> Any:
        context, clock = self._context, self._context.clock
        if not torch.is_grad_enabled():
            context.on_evaluation()
        if clock.armed:
            clock.claim(Part.OWN)
        if context.others_began:
            require_alike(context.comm, f"{type(module).__name__} on {batch.rows} rows", list(leaves(call)))
        axes = iter(verdict.inputs)
        args, kwargs = map_leaves(lambda value: self._local(value, next(axes), batch), call)
        if torch.is_grad_enabled():
            self._adopt(module)
        start = now()
        made = ShardedCall(context, plain, module, (args, kwargs), verdict, batch, self._stream)
        with (
            context.enter(Region.SHARDED, batch.rows, batchless=verdict.batchless),
            self._entered(module),
            self._calling(module),
            aside(module) if verdict.joint or self._watches_draws(verdict) else nullcontext(),
        ):
            output = self._way(made)
        context.tally.cut(type(uncompiled(module)).__name__)
        adopted = self._adopted.setdefault(module, [])
        if verdict.foreign or verdict not in adopted:
            # Leaves that are no parameters of the module, but its attributes or global variables. Once, or
            # at every call where there are such: the script may make them anew.
            if verdict not in adopted:
                adopted.append(verdict)
                self._verdicts.ran_as_one_piece(module)
                self._tell_uncompiled(module, verdict)
            for leaf in leaves_behind(leaves(output), start):
                context.adopt(leaf)
        made_global = self._made_global(module, call, output, batch, verdict)
        if clock.armed:
            clock.enter(Part.SCRIPT)
        return made_global

    def _tell_uncompiled(self, module: torch.nn.Module, verdict: Verdict) -> None:
        """Say where the compiler steps aside: while draws are watched, where ranks meet inside a model."""
        names = [type(uncompiled(part)).__name__ for part in module.modules() if is_compiled(part)]
        for name in names:
            if self._watches_draws(verdict):
                self._context.note(
                    f"{name} was given to torch.compile and runs uncompiled where it draws random numbers "
                    f"(dropout), which are made for the whole batch and then cut"
                )
            if verdict.joint and torch.is_grad_enabled():
                self._context.note(
                    f"{name} was given to torch.compile and runs uncompiled in training because of its batch "
                    f"norm: ranks meet in the midst of it for the statistics of the whole batch"
                )

    def _watches_draws(self, verdict: Verdict) -> bool:
        return bool(verdict.draws) and (self._stream is None or self._stream.watches)

    def _made_global(
        self, module: torch.nn.Module, call: Any, output: Any, batch: Batch, verdict: Verdict
    ) -> Any:
        """The output for the script: rows become global tensors, an argument that is returned is itself."""
        given = list(leaves(call)) if any(place is not None for place in verdict.same_as) else []
        expected = iter(zip(verdict.outputs, verdict.same_as, strict=True))

        def whole(value: Any) -> Any:
            axis, place = next(expected, (None, None))
            if axis is None or axis.dims != (value.dim() if isinstance(value, torch.Tensor) else None):
                raise another_form(module)
            if place is not None:
                return given[place]
            return self._global(value, axis, batch.rows)

        result = map_leaves(whole, output)
        if next(expected, None) is not None:
            raise another_form(module)
        return result

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

    def _local(self, value: Any, axis: int | None, batch: Batch) -> Any:
        if isinstance(value, GlobalTensor):
            return alike(localize(value), value)
        if not isinstance(value, torch.Tensor):
            return value
        if axis is None:
            return enter(self._context, value)
        layout = self._context.layout(axis, batch.rows, inner=batch.inner)
        with as_plain(value):
            # A copy that lies in memory as the whole does, so that `view` and random fills do the same.
            rows = cut(self._context, value, layout)
            rows = rows if rows.requires_grad else rows.clone()
        return alike(rows, value)

    def _global(self, value: Any, axis: OutputAxis, rows: int) -> Any:
        if not isinstance(value, torch.Tensor) or axis.dim is None:
            return value
        mine = self._context.layout(0, rows).count(self._context.rank)
        others = value.shape[axis.dim] // mine
        outer, inner = (others, 1) if axis.outer_first else (1, others)
        layout = Layout(axis.dim, rows, self._context.world_size, outer, inner)
        local = laid(plain(value), axis.order) if mine == 1 else plain(value)
        made = wrap(self._context, local, layout, self._rules)
        kind = own_class(value)
        if kind is None:
            return alike(made, value)
        self._context.note(
            f"what models return as {kind.__name__} is gathered on every rank at once, as only plain "
            f"tensors stay in rows; give the models x.as_subclass(torch.Tensor)"
        )
        return alike(materialize(made), value)

    def _adopt(self, module: torch.nn.Module) -> None:
        """Gradients of these parameters will differ between ranks, whoever updates them."""
        for part in module.modules():
            for parameter in part._parameters.values():
                if parameter is not None and parameter.requires_grad:
                    self._context.adopt(parameter)


def _body(plain: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
    """That of a module in parts, uncompiled: a graph traced through global tensors would hold rows."""
    if not is_compiled(module):
        return functools.partial(plain, module)
    inner = uncompiled(module)
    return module._call_impl if inner is module else inner


def _samples(values: list[Any], batch: Batch) -> int:
    """Rows of a batch that was not cut: a vector of numbers is one sample.

    Beside words laid end to end there is a shorter vector, of where each text begins.
    """
    if not batch.only_vectors(values):
        return batch.rows
    vectors = [value for value in values if isinstance(value, torch.Tensor) and value.dim() == 1]
    whole = [value for value in vectors if not value.is_floating_point()]
    return min((len(value) for value in whole), default=1)


def _is_real(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.is_floating_point()


def _is_array(value: Any) -> bool:
    return isinstance(value, numpy.ndarray) and value.ndim > 1


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_nested


_IN_TRANSFORM = (
    "a module was called inside a transform of torch.func (vmap, grad), where every rank computes the whole "
    "batch: right but no faster"
)
_WITH_TANGENTS = (
    "a module was called under forward-mode differentiation (torch.autograd.forward_ad), where every rank "
    "computes the whole batch: right but no faster"
)
# torch's losses are functions of global tensors that have rules of their own.
_HANDLED_BY_RULES = {"torch.nn.modules.loss"}

"""The model edge: conversion of global tensors to rows, and of outputs back.

`torch.nn.Module.__call__` is replaced. The outermost call with a batch among its arguments runs on this
rank's rows; the first of its form is observed meanwhile. If rows turn out to depend on each other it is
unwound, and the module runs *in parts*: its own body is carried out on global values, as a script is, and the
modules inside it are tried in turn. That is right for every module; it costs gathering where the body needs
the whole batch.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy
import torch

from ronde.errors import RondeError
from ronde.modules.active_modes import onlooker
from ronde.modules.batch_arguments import LISTED, BatchArguments, are_samples, batches, listed_samples
from ronde.modules.call_values import Crossing
from ronde.modules.calls import Calls, SmallBatches
from ronde.modules.compiled import uncompiled
from ronde.modules.explanations import Explanations, is_computed_whole
from ronde.modules.fast_path import may_take_fast_path
from ronde.modules.first_call import FirstCalls
from ronde.modules.observations import Call
from ronde.modules.sharded_call import ShardedCall, Way, at_once
from ronde.modules.torchscript import is_about_to_trace, is_training
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.rng.rank_stream import RankStream
from ronde.rowwise.compiled import aside, is_compiled
from ronde.rowwise.verdict import Verdict
from ronde.tensor.context import MainThreadState, Region, carries_tangents, in_transform
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.fingerprint import require_alike
from ronde.tensor.global_tensor import Rule, materialize, settled
from ronde.tensor.graph import leaves_behind, now
from ronde.tensor.tree import Opaque, caches, leaves, map_leaves
from ronde.trace.step_clock import Activity

__all__ = ["ModelEdge", "WithLoss"]

WithLoss = Callable[[torch.nn.Module, Any, Any, Callable[[], Any]], Any]
"""Given a model, its arguments, and what runs it in parts: its output."""


class ModelEdge:
    """Decisions about module calls; one per session.

    Args:
        rules: the operations that keep outputs sharded.
        stream: the rank's own generator for draws inside models, or None for `rng=global`.
        way: function that runs a call on this rank's rows.
        calling: context manager around every call of a model as one piece.
        cuts: whether batches are cut; else every rank computes all rows of its model.
        one_row: whether a single row is cut too: its sequence.
        sampled: whether the plan saves memory inside models, so that their rows are not observed all at once.

    Attributes:
        with_loss: runs calls of models that would run in parts; may be set.
    """

    def __init__(
        self,
        calls: Calls,
        rules: dict[Any, Rule],
        stream: RankStream | None,
        way: Way = at_once,
        calling: Callable[[torch.nn.Module], AbstractContextManager[object]] = nullcontext,
        *,
        cuts: bool = True,
        one_row: bool = False,
        sampled: bool = False,
    ) -> None:
        self._fewest_rows = 1 if one_row else 2
        self._calls, self._context = calls, calls.context
        self._way = way
        self._calling = calling
        self.with_loss: WithLoss | None = None
        self._cuts = cuts
        self._stream = stream
        self._crossing = Crossing(calls.context, rules, calls.notes.say)
        self._explanations = Explanations(calls)
        self._first_calls = FirstCalls(
            calls, self._explanations, self._observed, self._around, sampled=sampled
        )
        self._small_batches = SmallBatches()
        # Inside a module that gets one sample, whose layers see its features as a vector.
        self._in_one_sample = False
        self._count = 0
        self._adopted: weakref.WeakKeyDictionary[torch.nn.Module, list[Verdict]] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        patches.layer(MODULE_CALL, "boundary", self._layer)
        self._install_register_hook(patches)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        calls, context = self._calls, self._context

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # Nearly all calls are inside a model, so this is checked first. The answer holds for any thread.
            if context.standing.region is not Region.SCRIPT:
                if context.standing.function and context.on_main_thread():
                    calls.in_functions.setdefault(context.standing.function)
                return plain(module, *args, **kwargs)
            if not context.on_main_thread():
                calls.beside = True
                return plain(module, *args, **kwargs)
            if context.clock.armed:
                context.clock.enter(Activity.SCRIPT)
            heard = calls.heard
            if calls.called is not None:
                output = calls.called(self._call, plain, module, args, kwargs)
            else:
                output = self._call(plain, module, args, kwargs)
            if heard is not None:
                heard(module, output)
            return output

        return call

    def conclude(self) -> None:
        """Add notes that are known only at the end of a run."""
        self._explanations.conclude()
        calls = self._calls
        said = self._small_batches.sentence(self._context.world_size)
        # If nothing was cut and no module explains it, the user is told that batches were too small.
        if said and (calls.tally.sharded or calls.explained or calls.uncut):
            calls.notes.say(said)

    def _install_register_hook(self, patches: Patches) -> None:
        plain: Any = torch.Tensor.register_hook
        context = self._context

        def register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            if context.region is not Region.SCRIPT or not context.on_main_thread():
                return plain(tensor, hook)
            context.gradients_watched = True
            if not isinstance(tensor, torch.nn.Parameter):
                return plain(tensor, hook)
            count = self._count

            def checked(gradient: torch.Tensor) -> Any:
                if count and self._count == count:
                    raise RondeError(
                        f"a hook was registered on a parameter of shape {list(tensor.shape)} between a "
                        f"forward pass and its backward, where it would see the gradient of one rank's "
                        f"rows; register it before the forward pass [R374]"
                    )
                return hook(gradient)

            return plain(tensor, checked)

        patches.set(torch.Tensor, "register_hook", modes_first(register_hook))

    def _call(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if type(module).__module__ in _HANDLED_BY_RULES:
            return plain(module, *args, **kwargs)
        if in_transform():
            self._note_uncut(_IN_TRANSFORM)
            return plain(module, *args, **kwargs)
        if carries_tangents():
            self._note_uncut(_WITH_TANGENTS)
            return self._replicated(plain, module, (args, kwargs))
        if torch.jit.is_tracing():
            return plain(module, *args, **kwargs)
        if is_about_to_trace(module):
            return self._replicated(plain, module, (args, kwargs))
        try:
            # Arguments to be modified are not given in parts.
            for cache in caches((args, kwargs)):
                raise Opaque(type(cache).__name__)
            values = list(leaves((args, kwargs)))
        except Opaque as opaque:
            with self._explanations.opaque(module, str(opaque)):
                return _body(plain, module)(*args, **kwargs)
        return self._taken_apart(plain, module, args, kwargs, values)

    def _taken_apart(
        self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any, values: list[Any]
    ) -> Any:
        """Run a call, given the leaves of its arguments."""
        if any(isinstance(value, DeferredScalar) for value in values):
            args, kwargs = settled((args, kwargs))
            values = list(leaves((args, kwargs)))
        found = batches(values, self._calls.batch_dim, self._context.standing.rows)
        if not found:
            with self._explanations.arrays(module) if any(map(_is_array, values)) else nullcontext():
                return plain(module, *args, **kwargs)
        if not self._cuts:
            return self._uncut(plain, module, (args, kwargs), found[0].rows)
        listed = None if module in self._adopted else listed_samples(args, kwargs)
        least = max(self._context.world_size, self._fewest_rows)
        large = [batch for batch in found if batch.rows >= least and not (batch.searched and listed)]
        self._count += 1
        if self._calls.on_call is not None:
            self._calls.on_call(module)
        seen_by = onlooker()
        if seen_by is not None:
            self._note_uncut(
                f"{seen_by} sees what models compute, which on shards would be one rank's rows: every rank "
                f"computes the whole batch there, right but no faster [R305]"
            )
        too_few = not (large or listed) or self._first_calls.has_too_few(module, found, least)
        if seen_by is not None or any(map(_is_nested, values)) or too_few:
            self._tally(module, found[0].rows, small=too_few and seen_by is None)
            return self._replicated(plain, module, (args, kwargs))
        if self._in_one_sample and large and large[0].only_vectors(values) and all(map(_is_real, values)):
            return self._replicated(plain, module, (args, kwargs))
        # Along the first axis it may be one row: then the second need not be a batch.
        small = bool(large) and large[0] is not found[0] and not found[0].searched
        if large:
            call = Call(module, (args, kwargs), values, large, optional=small, listed=bool(listed))
            verdict, seen = self._first_calls.decide(plain, call)
        else:
            verdict, seen = self._explanations.listed(module, said=are_samples(values)), None
        if verdict.sharded:
            batch = large[verdict.candidate]
            self._tally(module, batch.rows)
            if seen is not None and seen.stands:
                return self._outward(module, (args, kwargs), seen.output, batch, verdict, seen.start)
            return self._sharded(plain, module, (args, kwargs), batch, verdict)
        if listed:
            # The supposed rows may be the colours of an image.
            whole = verdict.reason != LISTED and large[0].all_cut(values)
            samples, rows = large[0].rows if whole else listed, None
        elif verdict.raised and large[0].only_vectors(values):
            # One sample, or many end to end; their number is known once a module is called on them.
            samples, rows = _samples(values, found[0]), None
        elif not small and is_computed_whole(self._calls, large[verdict.candidate]):
            self._tally(module, large[verdict.candidate].rows)
            return self._replicated(plain, module, (args, kwargs))
        else:
            samples, rows = (
                _samples(values, large[verdict.candidate] if verdict.apart else found[0]),
                large[verdict.candidate].rows,
            )
        self._tally(module, samples, small=small)
        # A TorchScript module has no Python body to run in parts.
        if small or isinstance(module, torch.jit.ScriptModule) or may_take_fast_path(module):
            return self._replicated(plain, module, (args, kwargs))
        body = functools.partial(_body(plain, module), *args, **kwargs)
        in_parts = functools.partial(self._in_parts, module, verdict, rows, body, one=samples == 1)
        if self.with_loss is None or self._explanations.are_around():
            return in_parts()
        return self.with_loss(module, args, kwargs, in_parts)

    def _in_parts(
        self,
        module: torch.nn.Module,
        verdict: Verdict,
        rows: int | None,
        body: Callable[[], Any],
        *,
        one: bool,
    ) -> Any:
        """Run the body of a module as a script runs, on global values.

        `one`: whether its input, if not rows, is one sample.
        """
        around, self._in_one_sample = self._in_one_sample, rows is None and one
        try:
            with (
                self._context.enter(Region.SCRIPT, rows),
                self._explanations.inside(module, verdict),
                self._calls.sizes.kept_whole(module, rows or 0),
            ):
                return body()
        finally:
            self._in_one_sample = around

    def _uncut(self, plain: Callable[..., Any], module: torch.nn.Module, call: Any, rows: int) -> Any:
        """Run a module that has the same rows on all ranks."""
        self._count += 1
        if self._calls.on_call is not None:
            self._calls.on_call(module)
        self._tally(module, rows)
        return self._replicated(plain, module, call)

    def _note_uncut(self, why: str) -> None:
        self._calls.uncut = True
        self._calls.notes.say(why)

    def _tally(self, module: torch.nn.Module, rows: int, *, small: bool = False) -> None:
        training = is_training(module)
        if training and torch.is_grad_enabled():
            self._calls.tally.train_on(rows)
            if not self._explanations.are_around():
                self._small_batches.count(small=small)
        elif not training and not torch.is_grad_enabled():
            # With gradients enabled the script may be training, even after `eval()`.
            self._calls.tally.evaluate()

    def _replicated(self, plain: Callable[..., Any], module: torch.nn.Module, call: Any) -> Any:
        with self._context.enter(Region.REPLICATED, None), self._calling(module):
            args, kwargs = map_leaves(materialize, call)
            return self._attempt(module, functools.partial(plain, module, *args, **kwargs))

    def _sharded(
        self,
        plain: Callable[..., Any],
        module: torch.nn.Module,
        call: Any,
        batch: BatchArguments,
        verdict: Verdict,
    ) -> Any:
        clock = self._context.clock
        if not torch.is_grad_enabled():
            self._calls.on_evaluation()
        if clock.armed:
            clock.claim(Activity.OWN)
        start = now()
        made = self._observable(plain, module, call, verdict, batch)
        steps_aside = verdict.joint or self._watches_draws(verdict)
        with self._around(Region.SHARDED, made), aside(module) if steps_aside else nullcontext():
            output = self._attempt(module, lambda: self._way(made))
        return self._outward(module, call, output, batch, verdict, start)

    def _attempt(self, module: torch.nn.Module, work: Callable[[], Any]) -> Any:
        """Run a call that may raise on some ranks only.

        Other ranks may have gone further, and changed buffers.
        """
        return self._context.attempt(work, changed=module.buffers)

    def _observable(
        self,
        plain: Callable[..., Any],
        module: torch.nn.Module,
        call: Any,
        verdict: Verdict,
        batch: BatchArguments,
    ) -> ShardedCall:
        """Convert a call: its batch becomes this rank's rows."""
        context = self._context
        if context.compares:
            require_alike(context.comm, f"{type(module).__name__} on {batch.rows} rows", list(leaves(call)))
        given = self._crossing.inward(call, verdict.inputs, batch)
        if torch.is_grad_enabled():
            self._crossing.adopt(module)
        return ShardedCall(self._calls, plain, module, given, verdict, batch, self._stream)

    def _observed(
        self,
        plain: Callable[..., Any],
        module: torch.nn.Module,
        call: Any,
        verdict: Verdict,
        batch: BatchArguments,
    ) -> ShardedCall:
        """Convert a call for observation or comparison: all values except the batch are whole."""
        made = self._observable(plain, module, call, verdict, batch)
        return dataclasses.replace(made, given=map_leaves(materialize, made.given))

    @contextmanager
    def _around(self, region: Region, call: ShardedCall) -> Iterator[None]:
        """Enter the context of a model that runs on rows."""
        sizes = functools.partial(self._shown, call)
        standing = MainThreadState(region, call.batch.rows, call.verdict.batchless, resuming=sizes)
        with (
            self._context.enter(standing),
            # an observed call has a region of its own
            sizes() if region is Region.SHARDED else nullcontext(),
            self._crossing.entered(call.module),
            self._calling(call.module),
        ):
            yield

    def _shown(self, call: ShardedCall) -> AbstractContextManager[None]:
        """Replace batch sizes that the module keeps by this rank's, inside the block."""
        mine = call.cut.count(self._context.rank)
        return self._calls.sizes.shown(call.module, call.batch.rows, mine, call.verdict.sizes)

    def _outward(
        self,
        module: torch.nn.Module,
        call: Any,
        output: Any,
        batch: BatchArguments,
        verdict: Verdict,
        start: int,
    ) -> Any:
        """Convert a call's output for the script; its graph was made since `start`."""
        context = self._context
        self._calls.tally.cut(type(uncompiled(module)).__name__)
        adopted = self._adopted.setdefault(module, [])
        if verdict.foreign or verdict not in adopted:
            # Autograd leaves that are attributes of the module or global variables, not parameters. They are
            # looked for once, or at every call if there are any, since the script may replace them.
            if verdict not in adopted:
                adopted.append(verdict)
                self._tell_uncompiled(module, verdict)
            for leaf in leaves_behind(leaves(output), start):
                context.adopt(leaf)
        made_global = self._crossing.outward(module, call, output, batch, verdict)
        if context.clock.armed:
            context.clock.enter(Activity.SCRIPT)
        return made_global

    def _tell_uncompiled(self, module: torch.nn.Module, verdict: Verdict) -> None:
        """Note compiled modules that run uncompiled: for draws, or for collectives inside."""
        names = [type(uncompiled(part)).__name__ for part in module.modules() if is_compiled(part)]
        for name in names:
            if self._watches_draws(verdict):
                self._calls.notes.say(
                    f"{name} was given to torch.compile and runs uncompiled where it draws random numbers "
                    f"(dropout), which are made for the whole batch and then cut [R307]"
                )
            if verdict.joint and torch.is_grad_enabled():
                self._calls.notes.say(
                    f"{name} was given to torch.compile and runs uncompiled in training because of its batch "
                    "norm: it needs a collective for the statistics of the whole batch [R307]"
                )

    def _watches_draws(self, verdict: Verdict) -> bool:
        return bool(verdict.draws) and (self._stream is None or self._stream.watches)


def _body(plain: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
    """Return the uncompiled body of a module in parts.

    A graph traced through global tensors would hold rows.
    """
    if not is_compiled(module):
        return functools.partial(plain, module)
    inner = uncompiled(module)
    return module._call_impl if inner is module else inner


def _samples(values: list[Any], batch: BatchArguments) -> int:
    """Return the rows of an uncut batch; a vector of numbers is one sample.

    Words laid end to end come with a shorter vector of the beginnings of texts.
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
    "batch: right but no faster [R305]"
)
_WITH_TANGENTS = (
    "a module was called under forward-mode differentiation (torch.autograd.forward_ad), where every rank "
    "computes the whole batch: right but no faster [R305]"
)
# torch's losses are functions of global tensors that have rules of their own.
_HANDLED_BY_RULES = {"torch.nn.modules.loss"}

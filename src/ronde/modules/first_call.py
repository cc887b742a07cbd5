"""First call of each form, observed by all ranks together; the result is remembered."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ronde.modules.batch_arguments import LISTED, BatchArguments
from ronde.modules.calls import Calls
from ronde.modules.explanations import Explanations
from ronde.modules.fast_path import may_take_fast_path
from ronde.modules.module_key import used_up_by
from ronde.modules.observations import Call, CallForm, KnownCall, Observations
from ronde.modules.observed_call import (
    Around,
    Observed,
    compare,
    few_rows,
    in_checkpoint,
    observe,
    try_out,
)
from ronde.modules.sharded_call import ShardedCall
from ronde.patching.torch_internals import current_graph_task_id
from ronde.rowwise.kept_sizes import AMBIGUOUS
from ronde.rowwise.verdict import COUNTS, Verdict
from ronde.tensor.global_tensor import materialize
from ronde.tensor.tree import map_leaves

__all__ = ["FirstCalls"]

Observable = Callable[..., ShardedCall]
_ONE_ROW = "it treats a single row differently from a row among several [R333]"
# Number of rows that are tried where not all are observed.
_FEW = 5


class FirstCalls:
    """Decisions about calls; one per session.

    Args:
        observable: makes a call on this rank's rows.
        around: context manager around the call.
        sampled: whether only some of its rows are observed.
    """

    def __init__(
        self,
        calls: Calls,
        explanations: Explanations,
        observable: Observable,
        around: Around,
        *,
        sampled: bool,
    ) -> None:
        self._calls, self._context = calls, calls.context
        self._explanations = explanations
        self._observable = observable
        self._around = around
        self._sampled = sampled
        self._observations = Observations(calls)
        self._second: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def has_too_few(self, module: torch.nn.Module, found: list[BatchArguments], least: int) -> bool:
        """Return whether the batch has too few rows, on this module's second axis.

        Then a longer axis is not the batch either.
        """
        return any(batch.searched and batch.rows < least for batch in found) and module in self._second

    def decide(self, plain: Callable[..., Any], call: Call) -> tuple[Verdict, Observed | None]:
        """Return the verdict on a call, and its result if it was observed."""
        known, form, numbers = self._observations.find(call)
        if known is not None:
            # A recomputation by a checkpoint in backward is not a call of the script.
            again = current_graph_task_id() != -1
            if again or not known.verdict.sharded:
                return known.verdict, None
            if self._calls.must_see(call.module):
                seen = self._observe(plain, call)
                if seen.verdict.sharded:
                    return seen.verdict, seen
                form.forget(known)
                return self._learn(call, form, numbers, seen)
            if not known.is_due(call.batches[known.verdict.candidate].rows, numbers):
                return known.verdict, None
            seen = self._compared(plain, call, known)
            if seen is not None:
                return known.verdict, seen
            form.forget(known)
        given_up = self._observations.give_up(call, form)
        if given_up is not None:
            self._explanations.say(call, given_up)
            return given_up, None
        return self._learn(call, form, numbers, self._observe(plain, call))

    def _learn(
        self, call: Call, form: CallForm, numbers: tuple[Any, ...], seen: Observed
    ) -> tuple[Verdict, Observed]:
        """Remember the result of an observed call, and return its verdict with it."""
        verdict = seen.verdict
        if call.listed and verdict.raised:
            verdict = Verdict(False, LISTED)
        steps = seen.steps if verdict.sharded else None
        compared = self._is_compared(call, call.batches[verdict.candidate])
        form.learn(KnownCall(verdict, {call.batches[0].rows}, steps, numbers), compared=compared)
        self._explanations.say(call, verdict)
        if verdict.sharded and 1 in call.batches[verdict.candidate].axes:
            self._second.add(call.module)
        return verdict, seen

    def _observe(self, plain: Callable[..., Any], call: Call) -> Observed:
        """Observe candidates until one is accepted; else report the likeliest one's problem.

        A candidate whose outputs were rows of the batch is the likeliest, whatever its problem.
        """
        reason = self._refused_at_once(call)
        if reason:
            return Observed(Verdict(False, reason))
        first: Observed | None = None
        for place, batch in enumerate(call.batches):
            seen = self._on(plain, call, batch)
            verdict = dataclasses.replace(seen.verdict, candidate=place)
            if verdict.sharded:
                return dataclasses.replace(seen, verdict=verdict)
            # Ranks agree on the problem, but may have found it at different places.
            everybody = self._context.everybody
            everywhere = everybody.votes([not verdict.apart]) == [0]
            seen = dataclasses.replace(seen, verdict=dataclasses.replace(verdict, apart=everywhere))
            if first is None or (seen.verdict.apart and not first.verdict.apart and batch.likely):
                first = seen
        assert first is not None
        return first

    def _compared(self, plain: Callable[..., Any], call: Call, known: KnownCall) -> Observed | None:
        """Run and compare a later call; None where it takes another path."""
        batch = call.batches[known.verdict.candidate]
        if not self._is_compared(call, batch):
            return Observed(known.verdict)
        made = self._observable(plain, call.module, call.given, known.verdict, batch)
        assert known.steps is not None
        outside = self._observations.traits(call.module).outside
        self._context.compared = True
        try:
            return compare(made, self._around, outside, known.steps)
        finally:
            self._context.compared = False

    def _refused_at_once(self, call: Call) -> str:
        traits = self._observations.traits(call.module)
        if traits.hooked():
            self._context.gradients_watched = True
            return "it has hooks, which must see the whole batch [R338]"
        if traits.is_lazy():
            return "it has lazy layers, which are made by their first call [R352]"
        if used := used_up_by(call.module, traits.outside()):
            return f"it reads {used}, which is used up as it is read [R350]"
        return ""

    def _on(self, plain: Callable[..., Any], call: Call, batch: BatchArguments) -> Observed:
        """Observe a call with this candidate for its batch."""
        if any(axis is not None and _is_sparse(value) for value, axis in zip(call.values, batch.axes)):
            reason = "one of its arguments is a sparse matrix, which is not cut into rows [R347]"
            return Observed(Verdict(False, reason, batch.axes))
        if AMBIGUOUS in self._observations.sizes(call, batch):
            return Observed(Verdict(False, COUNTS, batch.axes))
        made = self._observable(plain, call.module, call.given, Verdict(False, inputs=batch.axes), batch)
        watched = self._around, self._observations.traits(call.module).outside
        single = self._calls.fewest(batch.rows) < 2  # one row alone cannot show whether rows are independent
        if not single and not self._is_tried_out(call):
            return observe(made, *watched)
        if single:
            given, rows = map_leaves(materialize, call.given), 2
        elif batch.searched:  # rows along a searched axis may be combined with distant ones
            given, rows = made.given, made.cut.count(self._context.rank)
        else:
            given, rows = made.given, min(self._calls.fewest(batch.rows), _FEW)
        seen = try_out(made, *watched, few_rows(given, batch.axes, rows, batch.inner), rows)
        if seen.verdict.sharded and seen.steps and not self._observations.fit(seen.steps, batch.rows):
            reason = _ONE_ROW if single else COUNTS
            return Observed(dataclasses.replace(seen.verdict, sharded=False, reason=reason))
        return seen

    def _is_compared(self, call: Call, batch: BatchArguments) -> bool:
        return self._calls.fewest(batch.rows) >= 2 and not self._is_tried_out(call)

    def _is_sampled(self) -> bool:
        return self._sampled or self._calls.pieces > 1

    def _is_tried_out(self, call: Call) -> bool:
        """Return whether the call is tried on a few rows first.

        An observed call does not take the fast path of transformers, which gives other results. A checkpoint
        around it counts saved tensors, even of a call that is unwound.
        """
        return self._is_sampled() or in_checkpoint() or any(map(may_take_fast_path, call.module.modules()))


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided

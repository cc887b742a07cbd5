"""`context=N`: calls of models with a part of every sequence on each rank.

Ranks of a context group have the same rows. Arguments with the tokens of attention are cut along them, the
model's own or those of modules in it; values are global tensors from there on. So each token is computed by
one rank, and attention gathers keys and values. The output of the model stays cut until the script looks at
it. Any other operation along the sequence is refused.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.modules.sharded_call import ShardedCall
from ronde.parallel.compute.micro_batch_pieces import run_on
from ronde.parallel.context.attention_arguments import AttendedTokens, AttentionCalls, sites
from ronde.parallel.context.rules import is_mask, sequence_rules
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.plan.mesh import ContextAttention
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, cut, gathered, is_global, wrap
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import is_sharded
from ronde.tensor.shard import innermost_rows, version_of
from ronde.tensor.tree import Opaque, instances, leaves, map_leaves

__all__ = ["Sequences"]


class Sequences:
    """Executor of calls on parts of sequences; one per session.

    A module without attention is computed whole by every rank: its inputs may not be sequences.

    Args:
        context: context of the ranks that have the same rows.
        item: plan item by which refusals name it.
        way: algorithm by which ranks attend to each other's keys.

    Attributes:
        cut_some: whether sequences were cut in a call.
        context: context of the context group.
    """

    def __init__(self, context: Context, item: str, way: ContextAttention) -> None:
        self.cut_some = False
        # Token axes, by model with attention.
        self._tokens: weakref.WeakKeyDictionary[torch.nn.Module, AttendedTokens] = weakref.WeakKeyDictionary()
        self._watch: AttentionCalls | None = None
        # Token axes of the model that is being called.
        self._inside: AttendedTokens | None = None
        self.context = context
        self._item = item
        self._rules = sequence_rules(way)

    def install(self, patches: Patches) -> None:
        patches.layer(MODULE_CALL, "sequences", self._layer)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if self._watch is not None:
                with self._watch.calling(module, args, kwargs):
                    return plain(module, *args, **kwargs)
            if self._inside is not None and module in self._inside.given:
                args, kwargs = self._cut_for(self._inside, module, args, kwargs)
            return plain(module, *args, **kwargs)

        return call

    def __call__(self, call: ShardedCall) -> Any:
        with call.drawing(call.cut):
            return self.run_on(call, list(leaves(call.given)))

    def run_on(self, call: ShardedCall, values: Sequence[Any]) -> Any:
        """Run a call with these leaves as its arguments."""
        tokens = self._tokens.get(call.module)
        if tokens is None:
            return run_on(call, values)
        name = type(call.module).__name__
        if not tokens.given and tokens.lost is not None:
            inside, length = tokens.lost
            raise UsageError(
                f"{self._item} cuts sequences over ranks, and {name} attends to {length} entries inside of "
                f"{inside}, which are not an argument [rows, entries, ...] of any module; take a plan "
                f"without context, such as tensor={self.context.world_size} [R250]"
            )
        with self._cutting(call.context, tokens), self._refusing(name):
            return run_on(call, values)

    @contextmanager
    def _cutting(self, script: Context, tokens: AttendedTokens) -> Iterator[None]:
        """Cut arguments of the model's modules inside the `with` block.

        A recomputation in backward cuts them, too.
        """
        standing = script.standing

        @contextmanager
        def inside() -> Iterator[None]:
            before, self._inside = self._inside, tokens
            try:
                yield
            finally:
                self._inside = before

        @contextmanager
        def again() -> Iterator[None]:
            with standing.resuming(), inside():
                yield

        with script.enter(dataclasses.replace(standing, resuming=again)), inside():
            yield

    def over(self, rows: torch.Tensor, layout: Layout) -> GlobalTensor:
        """Return the global tensor of which this rank has `rows`."""
        return wrap(self.context, rows, layout, self._rules)

    def stand_in(self, tensor: torch.Tensor, leaf: torch.Tensor) -> None:
        """Register a tensor that replaces a leaf in the next calls."""
        self.context.stand_in(tensor, leaf)

    @contextmanager
    def observing(self, module: torch.nn.Module) -> Iterator[None]:
        """Detect attention in a module's call on whole sequences."""
        tokens = self._tokens.get(module) or AttendedTokens.none()
        before, self._watch = self._watch, AttentionCalls(tokens)
        try:
            with self._watch as watch:
                yield
        finally:
            self._watch = before
        if watch.seen:
            self._tokens[module] = tokens

    def _cut_for(
        self, tokens: AttendedTokens, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Cut arguments of a module along their tokens."""
        given, known = dict(sites(args, kwargs)), dict[int, Any]()
        found = {
            (axis, value.shape[1 - axis], value.shape[axis])
            for site, axis in tokens.given[module].items()
            if isinstance(value := given.get(site), torch.Tensor) and value.dim() >= 2
        }

        def part(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dim() < 2 or is_sharded(value, self.context):
                return value
            axis = next(
                (axis for axis in (1, 0) if (axis, value.shape[1 - axis], value.shape[axis]) in found), None
            )
            if axis is None or value.shape[axis] < self.context.world_size:
                return value
            if id(value) not in known:
                known[id(value)] = self._cut(value, axis, causal=tokens.causal)
            return known[id(value)]

        def parts(value: Any) -> Any:
            try:
                return map_leaves(part, value)
            except Opaque:
                return value

        return tuple(map(parts, args)), {name: parts(value) for name, value in kwargs.items()}

    def _cut(self, value: torch.Tensor, axis: int, *, causal: bool) -> GlobalTensor:
        ranks, length = self.context.world_size, value.shape[axis]
        layout = Layout(axis, length, ranks, mirrored=causal and length >= 2 * ranks)
        self.cut_some = True
        return self.over(cut(self.context, self.whole(value), layout).contiguous(), layout)

    def whole(self, value: Any) -> Any:
        """Gather a leaf of a model's output if it is cut."""
        return gathered(value) if is_global(value, self.context) else value

    @contextmanager
    def _refusing(self, model: str) -> Iterator[None]:
        """Refuse gathers of cut values inside the `with` block, except by attention."""

        def refuse(func: Any, values: Any) -> None:
            found = instances(GlobalTensor, values)
            looked_at = [each for each in found if is_sharded(each, self.context)]
            known = next((each for each in looked_at if not is_mask(self.context, each)), None)
            if known is not None:
                name = getattr(func, "__name__", str(func))
                raise UsageError(
                    f"{self._item} cuts sequences of {known._layout.rows} entries over ranks, and {model} "
                    f"works along them by {name}, which only attention may do; have it attend by "
                    "scaled_dot_product_attention, or take a plan without context, such as "
                    f"tensor={self.context.world_size} [R250]"
                )

        copies: list[tuple[torch.Tensor, int]] = []

        def remember(made: torch.Tensor) -> None:
            rows = innermost_rows(made).detach()
            copies.append((rows, version_of(rows)))

        self.context.on_whole, self.context.on_copy = refuse, remember
        try:
            yield
        finally:
            self.context.on_whole, self.context.on_copy = None, lambda made: None
        if any(version_of(made) != version for made, version in copies):
            raise UsageError(
                f"{self._item} cuts sequences over ranks, and {model} takes an entry of a sequence, as "
                f"x[:, 0], and changes it in place, which on one device changes the sequence too; make a new "
                f"tensor, as y = x + 1 for x.add_(1), or take a plan without context, such as "
                f"tensor={self.context.world_size} [R250]"
            )

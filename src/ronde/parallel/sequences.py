"""`context=N`: a model's call, in which each rank has its part of every sequence.

Ranks of a context group have the same rows. The arguments' first axis beside the batch is cut; inside of the
model values are global tensors along it. So each token is computed by one rank, and attention gathers keys
and values. What leaves the model stays cut until the script looks at it. Whatever else works along the
sequence is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ronde.errors import UsageError
from ronde.modules.sharded_call import ShardedCall
from ronde.parallel.pieces import run_on
from ronde.parallel.sequence_rules import is_mask, sequence_rules
from ronde.plan.mesh import ContextAttention
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, cut, gathered, is_global, wrap
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import is_sharded
from ronde.tensor.tree import instances, leaves

__all__ = ["Sequences"]


class Sequences:
    """The way of carrying out calls under this plan; one per session.

    A module that attends nowhere is computed whole by every rank: its sequences may be none.

    Args:
        context: the context of the ranks that have the same rows.
        item: of the plan, by which refusals name it.
        way: in which ranks attend to each other's keys.

    Attributes:
        cut_some: sequences were cut in a call.
        context: of the context group.
    """

    def __init__(self, context: Context, item: str, way: ContextAttention) -> None:
        self.cut_some = False
        # Modules that attend; True of those in which a token sees none that come after it.
        self._attends: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()
        self.context = context
        self._item = item
        self._rules = sequence_rules(way)

    def __call__(self, call: ShardedCall) -> Any:
        with call.drawing(call.cut):
            return self.run_on(call, list(leaves(call.given)))

    def run_on(self, call: ShardedCall, values: Sequence[Any]) -> Any:
        """Carry a call out with these leaves for its arguments."""
        causal = self._attends.get(call.module)
        if causal is None:
            return run_on(call, values)
        self.cut_some = True
        length = self._length(call, values)
        known: dict[int, Any] = {}
        ranks = self.context.world_size
        whole = Layout(0, length, ranks, mirrored=causal and length >= 2 * ranks)
        given = [
            self._cut(each, axis, whole, known)
            for each, axis in zip(values, call.verdict.inputs, strict=True)
        ]
        with self._refusing(type(call.module).__name__, length):
            return run_on(call, given)

    def over(self, rows: torch.Tensor, layout: Layout) -> GlobalTensor:
        """The value of which this rank has these rows."""
        return wrap(self.context, rows, layout, self._rules)

    def stand_in(self, tensor: torch.Tensor, leaf: torch.Tensor) -> None:
        """Hear of a tensor to which a leaf's gradient comes in the next calls."""
        self.context.stand_in(tensor, leaf)

    @contextmanager
    def observing(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a module's call on whole sequences, which tells whether it attends."""
        watch = _Attention()
        with watch:
            yield
        if watch.seen:
            self._attends[module] = watch.causal

    def _length(self, call: ShardedCall, values: Sequence[Any]) -> int:
        """Of the sequences: the first axis beside the batch, of the first argument that has one."""
        for value, batch in zip(values, call.verdict.inputs, strict=True):
            if batch is not None and isinstance(value, torch.Tensor) and value.dim() >= 2:
                length = value.shape[_axis(batch)]
                if length >= self.context.world_size:
                    return length
                raise UsageError(
                    f"{self._item} cuts sequences, and {type(call.module).__name__} was called on those of "
                    f"{length} entries; give longer ones, or take a plan with a smaller context"
                )
        raise UsageError(
            f"{self._item} cuts sequences, and {type(call.module).__name__} was called without an argument "
            f"that has an axis beside that of the batch; take a plan without context"
        )

    def _cut(self, value: Any, batch: int | None, whole: Layout, known: dict[int, Any]) -> Any:
        if batch is None or not isinstance(value, torch.Tensor) or value.dim() < 2:
            return value
        axis = _axis(batch)
        if value.shape[axis] != whole.rows:
            return value
        if id(value) not in known:
            layout = whole.at(axis)
            if is_sharded(value, self.context) and value._layout == layout:
                return value
            rows = cut(self.context, self.whole(value), layout)
            known[id(value)] = self.over(rows.contiguous(), layout)
        return known[id(value)]

    def whole(self, value: Any) -> Any:
        """A leaf of what a model returns, gathered if it is cut."""
        return gathered(value) if is_global(value, self.context) else value

    @contextmanager
    def _refusing(self, model: str, length: int) -> Iterator[None]:
        """Inside, nobody gathers what is cut, but attention."""

        def refuse(func: Any, values: Any) -> None:
            found = instances(GlobalTensor, values)
            looked_at = [each for each in found if is_sharded(each, self.context)]
            if not all(is_mask(self.context, each) for each in looked_at):
                name = getattr(func, "__name__", str(func))
                raise UsageError(
                    f"{self._item} cuts sequences of {length} entries over ranks, and {model} works along "
                    f"them by {name}, where only attention may; have it attend by "
                    f"scaled_dot_product_attention, or take a plan without context, such as "
                    f"tensor={self.context.world_size}"
                )

        self.context.on_whole = refuse
        try:
            yield
        finally:
            self.context.on_whole = None


class _Attention(TorchFunctionMode):
    """Sees attention: torch's own, or scores `[..., n, n]` of all pairs, made of two activations.

    Attributes:
        seen: there was some.
        causal: of some, torch was told that a token sees none that come after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.causal = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func in (F.scaled_dot_product_attention, F.multi_head_attention_forward)
        if func is F.scaled_dot_product_attention:
            self.causal = self.causal or bool((kwargs or {}).get("is_causal", args[5:6] == (True,)))
        made = func(*args, **(kwargs or {}))
        self.seen = self.seen or (func in _PRODUCTS and _are_scores(made, args))
        return made


def _are_scores(made: torch.Tensor, operands: Any) -> bool:
    of_activations = all(each.dim() >= 3 for each in operands if isinstance(each, torch.Tensor))
    return of_activations and made.dim() >= 3 and made.shape[-1] == made.shape[-2] > 1


_PRODUCTS = (
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.bmm,
    torch.Tensor.bmm,
    torch.einsum,
)


def _axis(batch: int) -> int:
    return 1 if batch == 0 else 0

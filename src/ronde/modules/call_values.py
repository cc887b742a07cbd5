"""Conversion at a model's edge: batches become rows, outputs become global."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ronde.modules.batch_arguments import BatchArguments
from ronde.modules.sharded_call import another_form
from ronde.rowwise.verdict import Verdict
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import Rule, cut, cuts_rows, localize, materialize, wrap
from ronde.tensor.output_axis import OutputAxis
from ronde.tensor.rules.common import enter
from ronde.tensor.shard import laid
from ronde.tensor.tensor_class import alike, as_plain, own_class, plain
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["Crossing"]


class Crossing:
    """Conversion in both directions; one per session.

    Args:
        rules: the operations that keep outputs sharded.
    """

    def __init__(self, context: Context, rules: dict[Any, Rule], note: Callable[[str], None]) -> None:
        self._context = context
        self._note = note
        self._rules = rules

    def inward(self, call: Any, axes: Sequence[int | None], batch: BatchArguments) -> Any:
        """Convert the arguments for the model: this rank's rows of the batch.

        `axes` has the batch axis of each leaf.
        """
        remaining = iter(axes)
        return map_leaves(lambda value: self._local(value, next(remaining), batch), call)

    def outward(
        self, module: torch.nn.Module, call: Any, output: Any, batch: BatchArguments, verdict: Verdict
    ) -> Any:
        """Convert the output for the script: rows become global tensors.

        An argument that is returned stays itself.
        """
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
    def entered(self, module: torch.nn.Module) -> Iterator[None]:
        """Pass non-leaf parameters (`functional_call`) through the Enter edge, inside the block."""
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

    def _local(self, value: Any, axis: int | None, batch: BatchArguments) -> Any:
        if cuts_rows(value):
            return alike(localize(value), value)
        if not isinstance(value, torch.Tensor):
            return value
        if axis is None:
            return enter(self._context, value)
        layout = self._context.layout(axis, batch.rows, inner=batch.inner)
        with as_plain(value):
            # A copy with the memory layout of the whole, so that `view` and random fills behave alike.
            rows = cut(self._context, value, layout)
            rows = rows if rows.requires_grad else rows.clone()
        return alike(rows, value)

    def _global(self, value: Any, axis: OutputAxis, rows: int) -> Any:
        if not isinstance(value, torch.Tensor) or axis.dim is None:
            return value
        batch = self._context.layout(0, rows)
        mine = batch.count(self._context.rank)
        layout = axis.layout(value.shape, batch, mine)
        local = laid(plain(value), axis.order) if mine == 1 else plain(value)
        made = wrap(self._context, local, layout, self._rules)
        kind = own_class(value)
        if kind is None:
            return alike(made, value)
        self._note(
            f"outputs of class {kind.__name__} are gathered on every rank at once, because only plain "
            "tensors can stay sharded; give the models x.as_subclass(torch.Tensor) [R306]"
        )
        return alike(materialize(made), value)

    def adopt(self, module: torch.nn.Module) -> None:
        """Adopt a module's parameters: their gradients will differ between ranks."""
        for part in module.modules():
            for parameter in part._parameters.values():
                if parameter is not None and parameter.requires_grad:
                    self._context.adopt(parameter)

"""Analysis of operations by trial runs on a few rows and on their parts.

If the parts' results are rows of the whole's, the operation treats rows independently. Operations have no
side effects in Python, and row-wise operations compose to row-wise ones, so no table of rules is needed. An
operation is tried on random numbers once for each form, as the values of a first call hide much (a sum of
zeros, sorted rows). Integers may be indices, so they are tried with their own values, each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ronde.rowwise.labels import Label, Mark, Mixed, Order, Relative, along
from ronde.rowwise.operation import ObservedOperation, replaced, tensors
from ronde.rowwise.parts import PARTS, alike, is_real, ways
from ronde.rowwise.watch import Away, CallWatch

__all__ = ["Learnt", "RepeatAnalysis", "carry_out", "learn", "mark_results", "matched"]


@dataclasses.dataclass(frozen=True, slots=True)
class RepeatAnalysis:
    """The analysis of one result; the default: independent of rows.

    Attributes:
        axis, order: the axis of rows, and their order.
        parts: values for each part, if it depends only on the number of rows.
        mixed: whether it depends on several rows.
    """

    axis: int = 0
    order: Order | None = None
    parts: tuple[torch.Tensor, ...] = ()
    mixed: bool = False

    def mark(self, result: torch.Tensor, name: str) -> Mark | None:
        if self.parts:
            return Relative(self.parts)
        if self.order is not None:
            fits = self.axis < result.dim() and result.shape[self.axis] == len(self.order)
            return along(self.order, self.axis, result.shape) if fits else Mixed(name)
        return Mixed(name) if self.mixed else None


_MIXED = RepeatAnalysis(mixed=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Learnt:
    """The analysis of an operation before it runs.

    Attributes:
        found: analysis of each result; results beyond its end mix rows.
        few: results of the first few rows by themselves, if they are to be compared.
    """

    found: Sequence[RepeatAnalysis] = ()
    few: Sequence[torch.Tensor] = ()


_ROWS_MEET = Learnt()


def carry_out(watch: CallWatch, op: ObservedOperation, *, function: bool = False) -> Any:
    """Run an operation, and mark its results by the analysis of its parts.

    Args:
        function: whether it consists of other operations, which are not analysed.
    """
    learnt = learn(watch, op)
    with watch.looking_away(Away.NOTED) if function else nullcontext():
        result = op.run()
    mark_results(watch, op, result, learnt)
    return result


def learn(watch: CallWatch, op: ObservedOperation) -> Learnt:
    """Analyse an operation by its parts, before it runs."""
    with torch.no_grad(), watch.looking_away():
        candidates = _candidates(watch, op)
        if candidates is None:
            return _ROWS_MEET
        if any(type(mark) is Relative for mark in op.marks):
            return _tried(watch, op, candidates, random=False) or _ROWS_MEET
        form = _form(op)
        known = watch.forms.get(form)
        if known is not None and all(is_real(operand) for operand, mark in op.pairs() if mark is not None):
            return Learnt(known)
        if known is None:
            learnt = _tried(watch, op, candidates, random=True)
            if learnt is not None:  # if the trial was possible
                known = watch.forms[form] = learnt.found
        if known is not None and not known:
            return _ROWS_MEET
        return _tried(watch, op, candidates, random=False) or _ROWS_MEET


def mark_results(watch: CallWatch, op: ObservedOperation, result: Any, learnt: Learnt) -> None:
    """Mark results by the analysis, if the first few rows equal their trial run."""
    with torch.no_grad(), watch.looking_away():
        results = op.written or tensors(result)
        if not op.written:
            watch.made(results)
        for place, each in enumerate(results):
            if not each.numel():
                continue
            found = learnt.found[place] if place < len(learnt.found) else _MIXED
            mark = found.mark(each, op.facts.name)
            compared = learnt.few[place] if place < len(learnt.few) else None
            if compared is not None and not _has_few(each, mark, compared):
                mark = Mixed(op.facts.name)
            watch.overwrite(op, each, mark) if op.written else watch.put(each, mark)


def _has_few(result: torch.Tensor, mark: Mark | None, few: torch.Tensor) -> bool:
    """Return whether a result's first few rows equal the trial run's."""
    if type(mark) is not Label:
        return True
    return alike(mark.order.pick(result, mark.axis, 0), few)


def _form(op: ObservedOperation) -> Any:
    """Return a key that is equal for calls with the same effect on rows."""

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            mark = op.mark(value)
            return value.shape, value.dtype, (mark.axis, id(mark.order)) if type(mark) is Label else None
        return (type(value), value) if isinstance(value, (int, float, bool, str)) else str(value)

    return op.func, repr(replaced((op.args, op.kwargs), described))


def _candidates(watch: CallWatch, op: ObservedOperation) -> list[Order] | None:
    """Return the possible row orders of results; None if rows mix in any case."""
    labels = op.labels
    orders = list({id(label.order): label.order for label in labels}.values())
    if op.facts.name in ("cat", "stack") and labels:
        return _of_joined(watch, op, orders)
    if len({len(each) for each in orders}) < len(orders):
        return None  # different orders of equal length
    if op.facts.name == "repeat" and orders:
        times = op.args[1][len(op.args[1]) - op.args[0].dim() + labels[0].axis]
        return [watch.orders.of(orders[0].rows.repeat(times))]
    relative = any(type(mark) is Relative for mark in op.marks)
    return [*orders, watch.orders.batch] if relative else orders


def _of_joined(watch: CallWatch, op: ObservedOperation, orders: list[Order]) -> list[Order] | None:
    """Return the rows' order after a `cat` or `stack` along any axis."""
    labels = op.labels
    dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
    if op.facts.name == "cat" and dim % labels[0].ids.dim() == labels[0].axis:
        filled = sum(operand.numel() > 0 for operand in op.operands)
        rows = [label.order.rows for label in labels]
        return [watch.orders.of(torch.cat(rows))] if len(rows) == filled else None
    return orders if len(orders) == 1 else None


def _tried(
    watch: CallWatch, op: ObservedOperation, candidates: Sequence[Order], *, random: bool
) -> Learnt | None:
    """Return the analysis of the first way without mixing; None if no way runs."""
    failed: Exception | None = None
    carried_out = False
    for way in ways(watch, op, random=random):
        try:
            results = [way.results(part) for part in PARTS]
        except Exception as error:  # an error of the operation, on arguments that it never had
            failed = error.with_traceback(None)
            continue
        if not way.tells(results[0]):
            return None
        carried_out = True
        if any(len(each) != len(results[0]) for each in results):
            continue
        found = list(_matched(op, results, candidates))
        if found and (not found[0].mixed or not results[0][0].numel()):
            return Learnt(found, results[0])
    if not carried_out:
        watch.failed = watch.failed or failed
    return _ROWS_MEET if carried_out else None


def _matched(
    op: ObservedOperation, results: Sequence[Sequence[torch.Tensor]], candidates: Sequence[Order]
) -> Iterator[RepeatAnalysis]:
    labels, relative = bool(op.labels), any(type(mark) is Relative for mark in op.marks)
    for whole, *parts in zip(*results, strict=True):
        found = matched(whole, parts, candidates)
        if not labels and all(part.shape == whole.shape and alike(whole, part) for part in parts):
            found = RepeatAnalysis()
        elif relative and found.mixed and not (labels and (is_real(whole) or whole.dtype is torch.bool)):
            # Indices that count from the first row of a part.
            found = RepeatAnalysis(parts=(whole, *parts))
        yield found


def matched(
    whole: torch.Tensor, parts: Sequence[torch.Tensor], candidates: Sequence[Order]
) -> RepeatAnalysis:
    """Return the order in which the parts' results are rows of the whole's."""
    if any(part.dim() != whole.dim() for part in parts):
        return _MIXED
    dims = {d for part in parts for d in range(whole.dim()) if whole.shape[d] != part.shape[d]}
    if len(dims) != 1:
        return _MIXED
    axis = dims.pop()
    for order in candidates:
        few = order.few
        if len(few) == whole.shape[axis] and all(
            alike(few.pick(whole, axis, part), rows) for part, rows in enumerate(parts, 1)
        ):
            return RepeatAnalysis(axis, order)
    return _MIXED

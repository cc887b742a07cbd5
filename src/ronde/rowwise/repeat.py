"""An operation is repeated on a few rows and on two parts of these: are the parts' results rows of theirs?

Operations have no side effects in Python, and what treats rows one by one stays so when it is composed. So no
table of rules is needed. An operation is tried on random numbers once for each form of it: those of a first
call hide much (a sum of zeros, rows that are sorted already). Whole numbers may be places in a table or in
other rows, so they are tried as they are, each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ronde.rowwise.labels import Label, Mark, Mixed, Order, Relative, along
from ronde.rowwise.operation import Operation, replaced, tensors
from ronde.rowwise.parts import PARTS, alike, is_real, ways
from ronde.rowwise.watch import Away, Watch

__all__ = ["Found", "Learnt", "carry_out", "learn", "mark_results", "matched"]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a result was found to be; by itself: the same whatever the rows.

    Attributes:
        axis, order: where its rows lie.
        parts: where it is made of the number of rows: what it is for each part.
        mixed: it is made of several rows.
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


_MIXED = Found(mixed=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Learnt:
    """What was learnt of an operation before it is carried out.

    Attributes:
        found: of each result; of others, that rows meet there.
        few: what the results are of the few first rows by themselves, where that is to be compared.
    """

    found: Sequence[Found] = ()
    few: Sequence[torch.Tensor] = ()


_ROWS_MEET = Learnt()


def carry_out(watch: Watch, op: Operation, *, function: bool = False) -> Any:
    """The operation itself, of which the results are marked by what its parts show.

    Args:
        function: it consists of others, which are not looked at.
    """
    learnt = learn(watch, op)
    with watch.looking_away(Away.NOTED) if function else nullcontext():
        result = op.run()
    mark_results(watch, op, result, learnt)
    return result


def learn(watch: Watch, op: Operation) -> Learnt:
    """What the parts of an operation show, before it is carried out."""
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
            if learnt is not None:  # if it can be carried out so
                known = watch.forms[form] = learnt.found
        if known is not None and not known:
            return _ROWS_MEET
        return _tried(watch, op, candidates, random=False) or _ROWS_MEET


def mark_results(watch: Watch, op: Operation, result: Any, learnt: Learnt) -> None:
    """Know of the results what was learnt, if the few first rows are as they were by themselves."""
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
    """Whether the few first rows of a result are as they were by themselves, where it has rows."""
    if type(mark) is not Label:
        return True
    return alike(mark.order.pick(result, mark.axis, 0), few)


def _form(op: Operation) -> Any:
    """What all calls of an operation have in common that do the same with rows."""

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            mark = op.mark(value)
            return value.shape, value.dtype, (mark.axis, id(mark.order)) if type(mark) is Label else None
        return (type(value), value) if isinstance(value, (int, float, bool, str)) else str(value)

    return op.func, repr(replaced((op.args, op.kwargs), described))


def _candidates(watch: Watch, op: Operation) -> list[Order] | None:
    """Orders that the rows of results may have; None where rows meet whatever comes of it."""
    labels = op.labels
    orders = list({id(label.order): label.order for label in labels}.values())
    if op.facts.name in ("cat", "stack") and labels:
        return _of_joined(watch, op, orders)
    if len({len(each) for each in orders}) < len(orders):
        return None  # the same rows in two orders
    if op.facts.name == "repeat" and orders:
        times = op.args[1][len(op.args[1]) - op.args[0].dim() + labels[0].axis]
        return [watch.orders.of(orders[0].rows.repeat(times))]
    relative = any(type(mark) is Relative for mark in op.marks)
    return [*orders, watch.orders.batch] if relative else orders


def _of_joined(watch: Watch, op: Operation, orders: list[Order]) -> list[Order] | None:
    """Of tensors laid end to end: along the axis of rows, or beside it."""
    labels = op.labels
    dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
    if op.facts.name == "cat" and dim % labels[0].ids.dim() == labels[0].axis:
        filled = sum(operand.numel() > 0 for operand in op.operands)
        rows = [label.order.rows for label in labels]
        return [watch.orders.of(torch.cat(rows))] if len(rows) == filled else None
    return orders if len(orders) == 1 else None


def _tried(watch: Watch, op: Operation, candidates: Sequence[Order], *, random: bool) -> Learnt | None:
    """What the first way shows in which rows do not meet; None where there is no way."""
    failed: Exception | None = None
    carried_out = False
    for way in ways(watch, op, random=random):
        try:
            results = [way.results(part) for part in PARTS]
        except Exception as error:  # an operation's own, on what it was never given
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
    op: Operation, results: Sequence[Sequence[torch.Tensor]], candidates: Sequence[Order]
) -> Iterator[Found]:
    labels, relative = bool(op.labels), any(type(mark) is Relative for mark in op.marks)
    for whole, *parts in zip(*results, strict=True):
        found = matched(whole, parts, candidates)
        if not labels and all(part.shape == whole.shape and alike(whole, part) for part in parts):
            found = Found()
        elif relative and found.mixed and not (labels and (is_real(whole) or whole.dtype is torch.bool)):
            # Places that are counted from the first row of a part.
            found = Found(parts=(whole, *parts))
        yield found


def matched(whole: torch.Tensor, parts: Sequence[torch.Tensor], candidates: Sequence[Order]) -> Found:
    """How the parts' results lie in the whole's."""
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
            return Found(axis, order)
    return _MIXED

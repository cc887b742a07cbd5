"""An operation is repeated on a few rows, and on two parts of these: are the parts' results the rows of the whole's?

Operations have no side effects in Python, and what treats rows one by one stays so when it is composed. So no table
of rules is needed. An operation on floating-point numbers is tried on random ones, and once for each form of it:
those of a first call hide much (a sum of noughts, rows that are sorted already). Whole numbers may be places in a
table or in other rows, so they are tried as they are, each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ronde.rowwise.alike import alike
from ronde.rowwise.labels import Label, Mark, Mixed, Relative, along
from ronde.rowwise.operation import Operation, numbers_in, replaced, tensors
from ronde.rowwise.order import Order
from ronde.rowwise.watch import Away, Watch

__all__ = ["carry_out", "learn", "mark_results", "matched"]

_PARTS = (0, 1, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """What a result was found to be.

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


_MIXED = _Found(mixed=True)


def carry_out(watch: Watch, op: Operation, *, noted: bool = False) -> Any:
    """The operation itself, of which the results are marked by what its parts show.

    Args:
        noted: it is a function, of which the operations are noted but not looked at.
    """
    learnt = learn(watch, op)
    if noted:
        with watch.looking_away(Away.NOTED):
            result = op.run()
    else:
        result = op.run()
    mark_results(watch, op, result, learnt)
    return result


def learn(watch: Watch, op: Operation) -> _Learnt:
    """What its parts show, before it is carried out."""
    with torch.no_grad(), watch.looking_away():
        return _learnt(watch, op)


def mark_results(watch: Watch, op: Operation, result: Any, learnt: _Learnt) -> None:
    """Know of the results what was learnt, if the few first rows are as they were by themselves."""
    with torch.no_grad(), watch.looking_away():
        _mark_results(watch, op, op.written or tensors((result,)), learnt)


def _mark_results(watch: Watch, op: Operation, results: Sequence[torch.Tensor], learnt: _Learnt) -> None:
    if not op.written:
        watch.made(results)
    for place, each in enumerate(results):
        outcome = learnt.found[place] if place < len(learnt.found) else _MIXED
        mark = outcome.mark(each, op.facts.name)
        if type(mark) is Label and mark.order is not None and place < len(learnt.few):
            same = alike(mark.order.pick(each, mark.axis, 0), learnt.few[place])
            mark = mark if same else Mixed(op.facts.name)
        watch.overwrite(op, each, mark) if op.written else watch.put(each, mark)


@dataclasses.dataclass(frozen=True, slots=True)
class _Learnt:
    """What was learnt of an operation before it is carried out.

    Attributes:
        found: of each result; of others, that rows meet there.
        few: what the results are of the few first rows by themselves, where that is to be compared.
    """

    found: Sequence[_Found] = ()
    few: Sequence[torch.Tensor] = ()


def _learnt(watch: Watch, op: Operation) -> _Learnt:
    candidates = _candidates(watch, op)
    if candidates is None:
        return _Learnt()
    relative = any(type(mark) is Relative for mark in op.marks)
    if relative:
        return _tried(watch, op, candidates, _Actual) or _Learnt()
    form = _form(op)
    known = watch.forms.get(form)
    if known is None:
        tried = _tried(watch, op, candidates, _Random)
        if tried is None:  # nor can the next of this form be
            return _tried(watch, op, candidates, _Actual) or _Learnt()
        watch.forms[form] = tried.found
    if known is None or any(mark and not _is_real(operand) for operand, mark in op.pairs()):
        found = known if known is not None else watch.forms[form]
        return (_tried(watch, op, candidates, _Actual) or _Learnt()) if found else _Learnt()
    return _Learnt(known)


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _form(op: Operation) -> Any:
    """What all calls of an operation have in common that do the same with rows."""

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            mark = op.mark(value)
            lies = (mark.axis, id(mark.order)) if type(mark) is Label else None
            return value.shape, value.dtype, lies
        return (type(value), value) if isinstance(value, (int, float, bool, str)) else str(value)

    return op.func, repr(replaced((op.args, op.kwargs), described))


def _candidates(watch: Watch, op: Operation) -> list[Order] | None:
    """Orders that the rows of results may have; None where rows meet whatever comes of it."""
    if op.facts.name in ("cat", "stack"):
        return _of_joined(watch, op)
    orders: list[Order] = []
    for label in op.labels:
        if label.order is None:
            return None
        if all(label.order is not each for each in orders):
            orders.append(label.order)
    if len({len(each) for each in orders}) < len(orders):
        return None  # the same rows in two orders
    if op.facts.name == "repeat" and orders:
        times = op.args[1][len(op.args[1]) - op.args[0].dim() + op.labels[0].axis]
        return [watch.orders.of(orders[0].rows.repeat(times))]
    if any(type(mark) is Relative for mark in op.marks):
        orders.append(watch.orders.batch)
    return orders


def _of_joined(watch: Watch, op: Operation) -> list[Order] | None:
    """Of tensors laid end to end: along the axis of rows, or beside it."""
    first = next(mark for mark in op.marks if type(mark) in (Label, Relative))
    if type(first) is Relative:
        return [watch.orders.batch]
    dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
    own = dim % first.ids.dim() == first.axis and op.facts.name == "cat"
    filled = sum(operand.numel() > 0 for operand in op.operands)
    if own and len(op.labels) == filled and all(each.order for each in op.labels):
        return [watch.orders.of(torch.cat([each.order.rows for each in op.labels if each.order]))]
    alike = all(each.order is first.order for each in op.labels)
    return None if own or not alike or first.order is None else [first.order]


def _tried(
    watch: Watch, op: Operation, candidates: Sequence[Order], kind: type[_Actual]
) -> _Learnt | None:
    """What is found of the results; nothing where rows meet, None where it cannot be carried out so."""
    failed = True
    lengths = dict(_lengths(op))
    for sizes, constants in _variations(op, lengths):
        variation = kind(watch, op, lengths, sizes, constants=constants)
        try:
            results = [_results(op, variation, part) for part in _PARTS]
        except Exception:  # an operation's own, on what it was never given
            continue
        if not variation.is_telling(results[0]):
            return None
        failed = False
        if any(len(each) != len(results[0]) for each in results):
            continue
        found = list(_matched(op, results, candidates))
        if found and not found[0].mixed:
            return _Learnt(found, results[0])
    return None if failed and kind is _Random else _Learnt()


def _variations(op: Operation, lengths: Mapping[int, Any]) -> Iterator[tuple[frozenset[int], bool]]:
    """Which arguments are taken for numbers of rows, and whether dimensions of constants are, too."""
    may_be = [
        place
        for place in sorted(op.facts.sizes)
        if any(number in lengths for number in numbers_in(op.given(place)))
    ]
    if may_be:
        yield frozenset(may_be), False
    if len(may_be) > 1:
        yield frozenset(may_be[:1]), False
    yield frozenset(), False
    if any(mark is None and not lengths.keys().isdisjoint(operand.shape) for operand, mark in op.pairs()):
        yield frozenset(may_be), True


def _results(op: Operation, variation: _Actual, part: int) -> list[torch.Tensor]:
    args = [variation.of(value, place, part) for place, value in enumerate(op.args)]
    kwargs = {
        name: variation.of(value, op.facts.names.index(name) if name in op.facts.names else -1, part)
        for name, value in op.kwargs.items()
    }
    result = op.func(*args, **kwargs)
    written = [args[place] if place < len(args) else kwargs[name] for place, name in op.facts.written]
    return tensors(written) or tensors((result,))


class _Actual:
    """Operands of the parts, with the values that they have.

    Args:
        lengths: numbers that may be how many rows there are, and what they are for each part.
        sizes: places of arguments that are taken for such numbers.
        constants: so are dimensions of other tensors that are constant along them.
    """

    def __init__(
        self,
        watch: Watch,
        op: Operation,
        lengths: Mapping[int, tuple[int, ...]],
        sizes: frozenset[int],
        *,
        constants: bool,
    ) -> None:
        self.watch, self._op = watch, op
        self._lengths, self._sizes, self._constants = lengths, sizes, constants
        self._made: dict[int, torch.Tensor] = {}

    def of(self, argument: Any, place: int, part: int) -> Any:
        """What stands for an argument at a place of the schema."""
        is_size = place in self._sizes

        def shown(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self._tensor(value, part)
            if is_size and type(value) is int and value in self._lengths:
                return self._lengths[value][part]
            return value

        return replaced(argument, shown)

    def is_telling(self, results: Sequence[torch.Tensor]) -> bool:
        return True

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        """For a few rows that an operand has."""
        return rows.clone()

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """For an operand that has no rows."""
        return tensor.clone() if self._op.written else tensor

    def _tensor(self, tensor: torch.Tensor, part: int) -> torch.Tensor:
        mark = self._op.mark(tensor)
        if type(mark) is Relative:
            return mark.parts[part].clone()
        if type(mark) is not Label:
            return self._narrowed(self.constant(tensor), part)
        assert mark.order is not None
        if id(tensor) not in self._made:
            self._made[id(tensor)] = self.values(mark.order.pick(tensor, mark.axis, 0))
        few = self._made[id(tensor)]
        return mark.order.few.pick(few, mark.axis, part).clone()

    def _narrowed(self, tensor: torch.Tensor, part: int) -> torch.Tensor:
        if self._constants:
            for dim, length in enumerate(tensor.shape):
                first = tensor.narrow(dim, 0, 1)
                if length in self._lengths and torch.equal(first.expand_as(tensor), tensor):
                    return tensor.narrow(dim, 0, self._lengths[length][part])
        return tensor


class _Random(_Actual):
    """Operands of the parts, with random values where these are no places in others."""

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        if _is_real(rows):
            return self._drawn(rows)
        if len(self._op.operands) == 1 and rows.dtype is not torch.bool:
            return torch.empty_like(rows).random_(0, 7, generator=self.watch.generator(rows.device))
        return rows.clone()

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        blank = _is_real(tensor) and not bool(tensor.flatten()[:64].count_nonzero())
        if blank and id(tensor) not in self._made:
            self._made[id(tensor)] = self._drawn(tensor)
        return super().constant(self._made.get(id(tensor), tensor))

    def is_telling(self, results: Sequence[torch.Tensor]) -> bool:
        return all(bool(each.isfinite().all()) for each in results if _is_real(each))

    def _drawn(self, like: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(like, dtype=torch.float32) if like.dtype.is_floating_point else None
        if made is None or like.dtype is torch.float64:
            made = torch.empty_like(like)
        real = torch.view_as_real(made) if made.is_complex() else made
        real.uniform_(generator=self.watch.generator(like.device))
        return made.to(like.dtype)


def _lengths(op: Operation) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Numbers that are how many rows an operand has, and what they are for each part."""
    for operand, mark in op.pairs():
        if type(mark) is Label and mark.order is not None:
            yield len(mark.order), tuple(len(mark.order.places(part)) for part in _PARTS)
        elif type(mark) is Relative and operand.dim() == mark.parts[0].dim():
            for dim, length in enumerate(operand.shape):
                sizes = tuple(each.shape[dim] for each in mark.parts)
                if any(size != length for size in sizes):
                    yield length, sizes


def _matched(
    op: Operation, results: Sequence[Sequence[torch.Tensor]], candidates: Sequence[Order]
) -> Iterator[_Found]:
    relative = any(type(mark) is Relative for mark in op.marks)
    labels = bool(op.labels)
    for whole, *parts in zip(*results, strict=True):
        found = matched(whole, parts, candidates)
        if not labels and all(part.shape == whole.shape and alike(whole, part) for part in parts):
            found = _Found()
        if relative and found.mixed and (not labels or (not _is_real(whole) and whole.dtype is not torch.bool)):
            found = _Found(parts=(whole, *parts))
        yield found


def matched(whole: torch.Tensor, parts: Sequence[torch.Tensor], candidates: Sequence[Order]) -> _Found:
    """How the parts' results lie in the whole's."""
    if not whole.numel():
        return _Found()
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
            return _Found(axis, order)
    return _MIXED

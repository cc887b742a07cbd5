"""Functions of numbers of rows: they are called again for parts of the rows.

This shows whether a function makes the same for each row (`zeros(len(x), 3)`), so that the result has rows
like the batch, or another value for each part (`arange(len(x))`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.rowwise.labels import Drawn, Label, Order, Relative
from ronde.rowwise.operation import replaced, tensors
from ronde.rowwise.parts import PARTS, alike
from ronde.rowwise.repeat import matched
from ronde.rowwise.rows_int import RowsInt, is_counted
from ronde.rowwise.verdict import COUNTS, MixesRows
from ronde.rowwise.watch import CallWatch

__all__ = ["call", "rows_in"]

_EMPTY = {"empty", "new_empty", "empty_strided", "new_empty_strided"}
_DRAWS = {"rand", "randn", "randint", "normal"}


def rows_in(value: Any) -> Iterator[RowsInt]:
    """Yield the numbers of rows among arguments."""
    if is_counted(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from rows_in(each)
    elif isinstance(value, dict):
        yield from rows_in(tuple(value.values()))
    elif isinstance(value, slice):
        yield from rows_in((value.start, value.stop, value.step))


def call(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function that has numbers of rows among its arguments."""
    name = func.__name__
    marks = map(watch.of, tensors((*args, *kwargs.values())))
    if any(mark is not None and type(mark) is not Drawn for mark in marks) and not name.startswith("new_"):
        return _beside_rows(watch, func, args, kwargs)
    if _writes(name, kwargs):
        raise MixesRows(COUNTS)
    if name == "randperm":
        raise MixesRows("its random draws cannot be cut (randperm) [R349]")
    parts = [_made(watch, func, name, _with(args, kwargs, lambda rows, n=n: rows.part(n))) for n in PARTS]
    with DisableTorchFunction(), watch.looking_away():
        lies = _spread(watch, parts)
    if name in _DRAWS:
        if lies is None or lies[1] is not watch.orders.batch:
            raise MixesRows(f"its random draws cannot be cut ({name}) [R349]")
        watch.drawn = lies
    result = _here(func, args, kwargs)
    watch.drawn = None
    with DisableTorchFunction(), watch.looking_away():
        for made, *few in zip(tensors(result), *parts):
            _adopt(watch, made, few, lies)
    return result


def _here(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _with(args, kwargs, lambda rows: rows.here)
    return func(*args, **kwargs)


def _with(args: Any, kwargs: Any, number: Callable[[RowsInt], int]) -> tuple[Any, Any]:
    """Return the arguments with plain integers in place of numbers of rows."""

    def plain(value: Any) -> Any:
        if is_counted(value):
            return number(value)
        if isinstance(value, torch.Size):
            return torch.Size([plain(each) for each in value])
        if isinstance(value, slice):
            return slice(plain(value.start), plain(value.stop), plain(value.step))
        return value

    return replaced(tuple(args), plain), replaced(dict(kwargs), plain)


def _writes(name: str, kwargs: Any) -> bool:
    """Return whether a call would have side effects."""
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith("__i") or name == "__setitem__" or kwargs.get("out") is not None


def _beside_rows(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of numbers of rows and of the batch's rows.

    With the numbers for a part it must return that part's rows.
    """
    if not all(each.is_size() for each in rows_in((args, kwargs))):
        raise MixesRows(COUNTS)
    parts = [_on_part(watch, func, args, kwargs, part) for part in PARTS]
    before, watch.counted = watch.counted, frozenset(each.here for each in rows_in((args, kwargs)))
    try:
        result = _here(func, args, kwargs)
    finally:
        watch.counted = before
    with DisableTorchFunction(), torch.no_grad(), watch.looking_away():
        for made, *few in zip(tensors(result), *parts):
            mark = watch.of(made)
            if type(mark) is Label:
                rows = [mark.order.pick(made, mark.axis, part) for part in PARTS]
            else:
                rows = [made] * len(PARTS) if mark is None else few
            if not all(alike(a, b) for a, b in zip(rows, few, strict=True)):
                raise MixesRows(COUNTS)
    return result


def _on_part(watch: CallWatch, func: Any, args: Any, kwargs: Any, part: int) -> list[torch.Tensor]:
    """Return a function's results for a part of the rows."""

    def shown(value: Any) -> Any:
        mark = watch.of(value) if isinstance(value, torch.Tensor) else None
        if type(mark) is Label:
            return mark.order.pick(value, mark.axis, part).clone()
        if type(mark) is Relative:
            return mark.parts[part].clone()
        return value.clone() if isinstance(value, torch.Tensor) else value

    with DisableTorchFunction(), torch.no_grad(), watch.looking_away():
        args, kwargs = replaced(_with(args, kwargs, lambda rows: rows.part(part)), shown)
        try:
            return tensors(func(*args, **kwargs))
        except Exception:  # an error of the script, on arguments that it never had
            raise MixesRows(COUNTS) from None


def _made(watch: CallWatch, func: Any, name: str, given: tuple[Any, Any]) -> list[torch.Tensor]:
    """Return results for the numbers of a part; on "meta" if random or empty."""
    args, kwargs = given
    if name in _DRAWS or name in _EMPTY:
        kwargs = {key: value for key, value in kwargs.items() if key != "generator"} | {"device": "meta"}
    with watch.looking_away(), DisableTorchFunction():
        return tensors(func(*args, **kwargs))


def _spread(watch: CallWatch, parts: Sequence[Sequence[torch.Tensor]]) -> tuple[int, Order] | None:
    """Return the dimension along which results have one slice per row, and its order."""
    if not parts[0]:
        return None
    few, first = parts[0][0].shape, parts[1][0].shape
    changed = [dim for dim in range(len(few)) if few[dim] != first[dim]] if len(few) == len(first) else []
    if len(changed) != 1:
        return None
    times, rest = divmod(few[changed[0]], watch.counts.parts[0])
    return None if rest or not times else (changed[0], watch.orders.repeated(1, times))


def _adopt(
    watch: CallWatch, made: torch.Tensor, parts: Sequence[torch.Tensor], lies: tuple[int, Order] | None
) -> None:
    """Mark a result by its values for the parts."""
    if type(watch.of(made)) is Label or all(_is_same(made, each) for each in parts):
        return
    few, *others = parts
    if lies is not None:
        axis, order = lies
        fits = made.dim() == few.dim() and made.shape[axis] == len(order)
        if fits and (few.is_meta or _is_for_each(made, few, others, axis, order)):
            watch.label(made, order, axis)
            return
    if few.is_meta:
        raise MixesRows(COUNTS)
    watch.put(made, Relative(tuple(parts)))


def _is_same(made: torch.Tensor, other: torch.Tensor) -> bool:
    return made.shape == other.shape and (other.is_meta or torch.equal(made, other))


def _is_for_each(
    made: torch.Tensor, few: torch.Tensor, others: Sequence[torch.Tensor], axis: int, order: Order
) -> bool:
    return torch.equal(order.pick(made, axis, 0), few) and not matched(few, others, [order]).mixed

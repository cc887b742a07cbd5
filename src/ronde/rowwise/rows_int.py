"""An integer that knows that it is a number of rows.

The length of a batch, as a model reads it, is an int: the number of this rank's rows, so it works as a size
of any operation. It also knows its values for the whole batch and for the few rows of trial runs: it is a
function of the number of rows. Arithmetic yields another such function; a comparison must have the same
result for the whole batch and for this rank's rows, or the number decides a branch.

Like torch's symbolic sizes (`torch.SymInt`) it is unhashable, so caches do not keep it: einops, for instance,
recomputes for an unhashable size. After the observed call it is a plain int.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from ronde.rowwise.verdict import COUNTS, MixesRows

__all__ = ["Branch", "RowCounts", "RowsInt", "Unhashable", "is_counted"]


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """A comparison that a model made with a number of rows.

    Attributes:
        compare: comparison function, such as `operator.gt`.
        left, right: operands, as functions of the number of rows.
    """

    compare: Callable[[Any, Any], bool]
    left: Callable[[int], Any]
    right: Callable[[int], Any]

    def holds_for_both(self, whole: int, mine: int) -> bool:
        """Return whether the result is the same for both numbers of rows."""
        return self.at(whole) == self.at(mine)

    def at(self, rows: int) -> bool:
        return bool(self.compare(self.left(rows), self.right(rows)))


@dataclasses.dataclass(slots=True)
class RowCounts:
    """The numbers of rows of an observed call.

    Attributes:
        whole: rows of the batch on all ranks.
        mine: rows on this rank.
        parts: rows of a trial run: the first few, and two parts of these.
        branches: comparisons with a number of rows, in order.
        alive: number of living `RowsInt` objects.
        over: whether the call has ended, so that `RowsInt` are plain ints.
        problem: reason against sharding; kept here, as a model may catch any exception.
    """

    whole: int
    mine: int
    parts: tuple[int, int, int] = (0, 0, 0)
    branches: list[Branch] = dataclasses.field(default_factory=list)
    alive: int = 0
    over: bool = False
    problem: str = ""

    @staticmethod
    def of(whole: int, mine: int) -> RowCounts:
        """Choose the parts: the first row, and up to four more.

        A second part that begins with row 1 reveals operations on pairs or alternate rows.
        """
        few = min(mine, 5)
        return RowCounts(whole, mine, (few, 1, few - 1))


class Unhashable(TypeError):
    """Raised when a number of rows was hashed."""


class RowsInt(int):
    """A function of the number of rows, usable as an int: its value here.

    Attributes:
        times: factor of the number of rows, if it is a length; 0 if it was computed.
    """

    counts: RowCounts
    at: Callable[[int], int]
    times: int

    def __new__(cls, counts: RowCounts, at: Callable[[int], int], times: int = 0) -> RowsInt:
        self = super().__new__(cls, at(counts.mine))
        self.counts, self.at, self.times = counts, at, times
        counts.alive += 1
        return self

    @staticmethod
    def length(counts: RowCounts, times: int) -> RowsInt:
        """Make the length of an axis with this many entries per row."""
        return RowsInt(counts, lambda rows: rows * times, times)

    def __del__(self) -> None:
        self.counts.alive -= 1

    @property
    def here(self) -> int:
        """The value for this rank's rows, as a plain int."""
        return self.at(self.counts.mine)

    def part(self, number: int) -> int:
        """Return the value for trial rows (0) or their parts (1, 2)."""
        return self.at(self.counts.parts[number])

    def is_size(self) -> bool:
        """Return whether the value is proportional to the number of rows."""
        whole, mine = self.counts.whole, self.counts.mine
        return self.at(whole) * mine == self.at(mine) * whole

    def __reduce__(self) -> Any:
        return int, (self.here,)

    def __deepcopy__(self, memo: Any) -> RowsInt:
        return self


def is_counted(value: Any) -> bool:
    """Return whether a value is a number of rows of a running observed call."""
    return isinstance(value, RowsInt) and not value.counts.over


def _hashed(number: RowsInt) -> int:
    raise Unhashable("a number of rows has no hash while a call is observed")


def _refused(number: RowsInt, *_: Any) -> Any:
    raise _counted(number.counts)


def _as_number(number: RowsInt, other: Any = None, *_: Any) -> Any:
    if isinstance(other, torch.Tensor):
        return NotImplemented
    raise _counted(number.counts)


def _counted(counts: RowCounts) -> MixesRows:
    counts.problem = counts.problem or COUNTS
    return MixesRows(COUNTS)


_Binary = Callable[[Any, Any], Any]


def _compared(number: RowsInt, other: Any, compare: _Binary) -> Any:
    if not isinstance(other, (int, float)):
        return NotImplemented
    counts = number.counts
    branch = Branch(compare, number.at, _function_of(other))
    if not branch.holds_for_both(counts.whole, counts.mine):
        raise _counted(counts)
    counts.branches.append(branch)
    return branch.at(counts.mine)


def _combined(number: RowsInt, other: Any, combine: _Binary) -> Any:
    if isinstance(other, (torch.Tensor, list, tuple, str, bytes)):
        return NotImplemented
    counts, left, right = number.counts, number.at, _function_of(other)
    if not isinstance(other, int):
        raise _counted(counts)

    def at(rows: int) -> int:
        return combine(left(rows), right(rows))

    try:
        values = {at(rows) for rows in (counts.whole, counts.mine, *counts.parts)}
    except ArithmeticError:
        raise _counted(counts) from None
    return values.pop() if len(values) == 1 else RowsInt(counts, at)


def _function_of(other: Any) -> Callable[[int], Any]:
    return other.at if is_counted(other) else lambda _: other


def _swapped(combine: _Binary) -> _Binary:
    return lambda left, right: combine(right, left)


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod")
# Operators that yield another kind of number, or depend on digits.
_OTHER_ARITHMETIC = ("truediv", "pow", "divmod", "and", "or", "xor", "lshift", "rshift")
_CONVERSIONS = ("int", "float", "str", "repr", "format", "round", "trunc", "floor", "ceil", "abs", "invert")


def _methods() -> dict[str, Callable[..., Any]]:
    """Return the methods of an int that are replaced during the call, by name."""
    found: dict[str, Callable[..., Any]] = {
        "hash": _hashed,
        "bool": lambda number: _compared(number, 0, operator.ne),
        "neg": lambda number: _combined(number, 0, _swapped(operator.sub)),
        "pos": lambda number: number,
        **dict.fromkeys(_CONVERSIONS, _refused),
    }
    for name in _COMPARISONS:
        found[name] = functools.partial(_compared, compare=getattr(operator, name))
    for name in _ARITHMETIC:
        combine = getattr(operator, name)
        found[name] = functools.partial(_combined, combine=combine)
        found[f"r{name}"] = functools.partial(_combined, combine=_swapped(combine))
    for name in _OTHER_ARITHMETIC:
        found[name] = found[f"r{name}"] = _as_number
    return found


def _until_over(watched: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def method(number: RowsInt, *args: Any) -> Any:
        return plain(number, *args) if number.counts.over else watched(number, *args)

    return method


for _name, _method in _methods().items():
    setattr(RowsInt, f"__{_name}__", _until_over(_method, getattr(int, f"__{_name}__")))

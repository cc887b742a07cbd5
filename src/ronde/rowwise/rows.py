"""A number of rows that remembers being one.

What a model reads as the length of its batch is an int here, that of this rank's rows, so that it serves as a
size of any operation. Beside that it knows what it would be for the whole batch and for the few rows on which
operations are tried: it is a function of the number of rows. Arithmetic makes another such function of it; a
comparison must come out alike for the whole batch and for this rank's rows, or the number decides a branch.

Like torch's own symbolic sizes (`torch.SymInt`) it has no hash, so no cache keeps it: einops, for one,
computes anew where a size has none. Once the observed call is over it is the plain int that it was here.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from ronde.rowwise.verdict import COUNTS, MixesRows

__all__ = ["Branch", "Counts", "Rows", "Unhashable", "is_counted"]


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """A comparison that a model made with a number of rows.

    Attributes:
        compare: such as `operator.gt`.
        left, right: its operands, as functions of the number of rows.
    """

    compare: Callable[[Any, Any], bool]
    left: Callable[[int], Any]
    right: Callable[[int], Any]

    def holds_for_both(self, whole: int, mine: int) -> bool:
        """Whether it comes out alike for so many rows of the whole batch and of this rank."""
        return self.at(whole) == self.at(mine)

    def at(self, rows: int) -> bool:
        return bool(self.compare(self.left(rows), self.right(rows)))


@dataclasses.dataclass(slots=True)
class Counts:
    """How many rows there are.

    Attributes:
        whole: of the batch, on all ranks.
        mine: here.
        parts: those of the few first rows on which operations are tried, and of two parts of these.
        branches: comparisons with a number of rows that were made, in order.
        alive: how many of these numbers there are.
        over: the observed call has ended, and these numbers are plain ones.
        problem: why the call must not be cut; kept here, as a model may go on after any exception.
    """

    whole: int
    mine: int
    parts: tuple[int, int, int] = (0, 0, 0)
    branches: list[Branch] = dataclasses.field(default_factory=list)
    alive: int = 0
    over: bool = False
    problem: str = ""

    @staticmethod
    def of(whole: int, mine: int) -> Counts:
        """The second part begins with the second row, so that what is done by pairs or turns is seen."""
        few = min(mine, 5)
        return Counts(whole, mine, (few, 1, few - 1))


class Unhashable(TypeError):
    """A number of rows was hashed."""


class Rows(int):
    """A number made of the number of rows; as an int it is what that is here.

    Attributes:
        times: how many times the number of rows it is, if it is a length; 0 where it was computed.
    """

    counts: Counts
    at: Callable[[int], int]
    times: int

    def __new__(cls, counts: Counts, at: Callable[[int], int], times: int = 0) -> Rows:
        self = super().__new__(cls, at(counts.mine))
        self.counts, self.at, self.times = counts, at, times
        counts.alive += 1
        return self

    @staticmethod
    def length(counts: Counts, times: int) -> Rows:
        """The length of an axis on which so many entries belong to each row."""
        return Rows(counts, lambda rows: rows * times, times)

    def __del__(self) -> None:
        self.counts.alive -= 1

    @property
    def here(self) -> int:
        """What it is for this rank's rows, as a plain int."""
        return self.at(self.counts.mine)

    def part(self, number: int) -> int:
        """What it would be for the few first rows (0) or one of their parts (1, 2)."""
        return self.at(self.counts.parts[number])

    def is_size(self) -> bool:
        """Whether it is as many times larger for the whole batch as that has rows."""
        whole, mine = self.counts.whole, self.counts.mine
        return self.at(whole) * mine == self.at(mine) * whole

    def __reduce__(self) -> Any:
        return int, (self.here,)

    def __deepcopy__(self, memo: Any) -> Rows:
        return self


def is_counted(value: Any) -> bool:
    """Whether it is a number of rows of an observed call that is under way."""
    return isinstance(value, Rows) and not value.counts.over


def _hashed(number: Rows) -> int:
    raise Unhashable("a number of rows has no hash while a call is observed")


def _refused(number: Rows, *_: Any) -> Any:
    raise _counted(number.counts)


def _as_number(number: Rows, other: Any = None, *_: Any) -> Any:
    if isinstance(other, torch.Tensor):
        return NotImplemented
    raise _counted(number.counts)


def _counted(counts: Counts) -> MixesRows:
    counts.problem = counts.problem or COUNTS
    return MixesRows(COUNTS)


_Binary = Callable[[Any, Any], Any]


def _compared(number: Rows, other: Any, compare: _Binary) -> Any:
    if not isinstance(other, (int, float)):
        return NotImplemented
    counts = number.counts
    branch = Branch(compare, number.at, _function_of(other))
    if not branch.holds_for_both(counts.whole, counts.mine):
        raise _counted(counts)
    counts.branches.append(branch)
    return branch.at(counts.mine)


def _combined(number: Rows, other: Any, combine: _Binary) -> Any:
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
    return values.pop() if len(values) == 1 else Rows(counts, at)


def _function_of(other: Any) -> Callable[[int], Any]:
    return other.at if is_counted(other) else lambda _: other


def _swapped(combine: _Binary) -> _Binary:
    return lambda left, right: combine(right, left)


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod")
# What gives another kind of number, or looks at digits.
_OTHER_ARITHMETIC = ("truediv", "pow", "divmod", "and", "or", "xor", "lshift", "rshift")
_CONVERSIONS = ("int", "float", "str", "repr", "format", "round", "trunc", "floor", "ceil", "abs", "invert")


def _methods() -> dict[str, Callable[..., Any]]:
    """What each method of an int does while the call is observed, by its name."""
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
    def method(number: Rows, *args: Any) -> Any:
        return plain(number, *args) if number.counts.over else watched(number, *args)

    return method


for _name, _method in _methods().items():
    setattr(Rows, f"__{_name}__", _until_over(_method, getattr(int, f"__{_name}__")))

"""Numbers that tell when they decide something.

A number that is another one at every call cannot be observed at each of its values. It need not be, when it
only ever goes into arithmetic. What steers Python is a comparison, and these numbers note those: what was
found holds for other values that compare alike.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy
import torch

from ronde.rowwise.operation import replaced
from ronde.rowwise.rows import Branch

__all__ = ["Decision", "Notes", "is_notable", "plain_number", "without_notes"]

_ARITHMETIC = "add sub mul truediv floordiv mod pow".split()
_ALONE = "neg pos abs".split()
_COMPARISONS = "lt le gt ge eq ne".split()
# Of these cannot be told for which other values they would come out alike.
_OPEN = """
__int__ __float__ __round__ __floor__ __ceil__ __trunc__ __hash__ __index__ __str__ __repr__ __format__
is_integer bit_length as_integer_ratio
""".split()


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """How a comparison came out.

    Attributes:
        place: of the number that was compared, or of which that was made, among the numbers of a form.
        branch: the comparison, as functions of that number.
        outcome: with the number as it was.
    """

    place: int
    branch: Branch
    outcome: bool

    def holds_for(self, numbers: Sequence[Any]) -> bool:
        """Whether it comes out alike with these numbers."""
        number = numbers[self.place]
        return is_notable(number) and self.branch.at(number) == self.outcome


def _arithmetic(name: str, *, swapped: bool) -> Callable[..., Any]:
    combine = getattr(operator, name)

    def method(self: Any, other: Any, *more: Any) -> Any:
        if isinstance(other, torch.Tensor):  # they are watched by themselves
            return NotImplemented
        left, right = self.at, _function_of(self, other)
        if right is None or more:  # what others make of it does not tell what it decides
            self.notes.open(name)
            plain = plain_number(self), plain_number(other)
            return combine(*reversed(plain)) if swapped else combine(*plain)
        if swapped:
            left, right = right, left
        return _made(self, lambda number: combine(left(number), right(number)))

    return method


def _alone(name: str) -> Callable[..., Any]:
    change = getattr(operator, name)

    def method(self: Any) -> Any:
        before = self.at
        return _made(self, lambda number: change(before(number)))

    return method


def _comparison(name: str) -> Callable[..., Any]:
    compare = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        right = _function_of(self, other)
        if right is None:
            self.notes.open(name)
            return compare(plain_number(self), plain_number(other))
        return self.notes.decide(self, Branch(compare, self.at, right))

    return method


def _truth(self: Any) -> bool:
    return self.notes.decide(self, Branch(operator.ne, self.at, lambda _: 0))


def _opening(plain: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        self.notes.open(plain.__name__)
        return plain(plain_number(self), *others)

    return method


def _members(kind: type) -> dict[str, Any]:
    members: dict[str, Any] = {"__bool__": _truth, "__reduce__": lambda self: (kind, (plain_number(self),))}
    members |= {f"__{name}__": _arithmetic(name, swapped=False) for name in _ARITHMETIC}
    members |= {f"__r{name}__": _arithmetic(name, swapped=True) for name in _ARITHMETIC}
    members |= {f"__{name}__": _alone(name) for name in _ALONE}
    members |= {f"__{name}__": _comparison(name) for name in _COMPARISONS}
    return members | {name: _opening(getattr(kind, name)) for name in _OPEN if hasattr(kind, name)}


_Float: Any = type("NotedFloat", (float,), _members(float))
_Int: Any = type("NotedInt", (int,), _members(int))


def _function_of(number: Any, other: Any) -> Callable[[Any], Any] | None:
    """The other operand as a function of the number; None where it is none."""
    if isinstance(other, (_Float, _Int)):
        return other.at if other.notes is number.notes and other.place == number.place else None
    return (lambda _: other) if is_plain(other) else None


def is_plain(value: Any) -> bool:
    return type(value) in (int, float, bool)


def _made(number: Any, at: Callable[[Any], Any]) -> Any:
    """What was made of a number by arithmetic."""
    result = at(number.now)
    if is_plain(result):
        return number.notes.number(result, number.place, number.now, at)
    number.notes.open("arithmetic")  # a complex root, say
    return result


def is_notable(value: Any) -> bool:
    """Whether `noted` can tell what a value decides."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain_number(value: Any) -> Any:
    """A number that notes nothing any more; anything else as it is."""
    if isinstance(value, _Float):
        return float.__pos__(value)
    return int.__pos__(value) if isinstance(value, _Int) else value


def without_notes(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any], bool]:
    """Arguments for torch, to which all numbers are plain, and whether one of them was not."""
    steered = False

    def plain(value: Any) -> Any:
        nonlocal steered
        if not isinstance(value, (_Float, _Int)):
            return value
        steered = True
        return plain_number(value)

    return replaced(args, plain), replaced(kwargs, plain), steered


class Variable(Protocol):
    """Where a number is."""

    def read(self) -> Any: ...
    def put(self, value: Any) -> None: ...


class Notes:
    """Numbers of a call that note what they decide.

    Args:
        places: where numbers are that are others at each call, or containers with more or less in them, by
            their place among the numbers of the form.

    Attributes:
        decisions: comparisons that were made.
        opened: what else was asked of one of them, which may decide anything.
    """

    def __init__(self, places: Mapping[int, Variable]) -> None:
        self._places = places
        self._containers: set[int] = set()
        self.decisions: list[Decision] = []
        self.opened: list[str] = []

    def open(self, name: str) -> None:
        self.opened.append(name)

    def measured(self, value: Any) -> None:
        """It was asked how long this is."""
        if id(value) in self._containers:
            self.open("len")

    def decide(self, number: Any, branch: Branch) -> bool:
        outcome = branch.at(number.now)
        self.decisions.append(Decision(number.place, branch, outcome))
        return outcome

    def of(self, value: Any, place: int) -> Any:
        """The same number, which notes; anything else as it is."""
        if not is_notable(value):
            return value
        plain = value.item() if isinstance(value, numpy.generic) else value
        return self.number(plain, place, plain, lambda number: number)

    def number(self, value: Any, place: int, now: Any, at: Callable[[Any], Any]) -> Any:
        """A number that is such a function of the one at a place, as that is now."""
        made = (_Float if isinstance(value, float) else _Int)(value)
        made.notes, made.place, made.now, made.at = self, place, now, at
        return made

    @contextmanager
    def put(self) -> Iterator[None]:
        """Inside, the numbers at these places are such."""
        put = []
        for place, variable in self._places.items():
            before = variable.read()
            number = self.of(before, place)
            if number is before:
                self._containers.add(id(before))
            else:
                variable.put(number)
            put.append((variable, before, number))
        try:
            yield
        finally:
            for variable, before, number in put:
                now = variable.read()
                plain = before if now is number else plain_number(now)
                if plain is not now:
                    variable.put(plain)

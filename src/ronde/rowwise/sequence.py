"""The recorded operations of an observed call, for comparison with later calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ronde.rng.draws import is_random
from ronde.rowwise.labels import Marks
from ronde.rowwise.operation import facts_of, tensors, written
from ronde.rowwise.rows_int import Branch

__all__ = ["Sequence", "Step", "follow", "follow_function", "is_same", "step_of"]

Step = tuple[str, "tuple[Any, ...] | None"]


@dataclasses.dataclass(slots=True)
class Sequence:
    """The operations of a call, and their numbers.

    Attributes:
        rows: number of this rank's rows.
        steps: each operation with its numeric arguments.
        branches: comparisons with the number of rows.
    """

    rows: int = 0
    steps: list[Step] = dataclasses.field(default_factory=list)
    branches: list[Branch] = dataclasses.field(default_factory=list)

    def without_numbers(self) -> Sequence:
        """Return a sequence of the operations alone."""
        return Sequence(self.rows, [(name, None) for name, _ in self.steps], self.branches)

    def fits(self, whole: int, mine: int) -> bool:
        """Return whether all branches decide as in the observed call."""
        return all(branch.at(whole) == branch.at(mine) == branch.at(self.rows) for branch in self.branches)


def step_of(marks: Marks, func: Any, args: Any, kwargs: Any) -> Step | None:
    """Describe an operation with its numbers; None for one without rows. An operation without rows cannot mix
    them.

    Models rebuild masks or grids when a length changes, and torch omits a slice that takes all. A length is
    described by the equally long dimension of an operand.
    """
    facts = facts_of(func)
    name = str(func)
    if facts.name == "lift_fresh" and args[0].device.type == "cpu":
        return name, tuple(args[0].flatten()[:64].tolist())
    operands = tensors((*args, *kwargs.values()))
    if not (marks.may_hold_rows(operands) or is_random(func, args, kwargs)):
        return None
    lengths = [length for tensor in operands for length in tensor.shape]
    found: list[Any] = []
    for place, argument in enumerate(facts.names):
        value = args[place] if place < len(args) else kwargs.get(argument)
        for each in _numbers(value):
            found.append(_described(each, place in facts.sizes, lengths))
    return name, tuple(found)


def follow(marks: Marks, func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Record whether results of an operation are new memory, and may hold rows."""
    results, changed = tensors(result), written(func, args, kwargs)
    if not (changed or facts_of(func).is_view):
        for each in results:
            marks.made(each)
    _pass_rows_on(marks, (*args, *kwargs.values()), [*results, *changed])


def follow_function(marks: Marks, args: Any, result: Any) -> None:
    """Record whether results of a function may hold rows."""
    _pass_rows_on(marks, args, tensors(result))


def _pass_rows_on(marks: Marks, given: Any, results: list[torch.Tensor]) -> None:
    if marks.may_hold_rows(tensors(given)):
        for each in results:
            marks.hold_rows(each)


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, (int, float, str)):
        return [value]
    if isinstance(value, (tuple, list)):
        return [each for item in value for each in _numbers(item)]
    return []


@dataclasses.dataclass(frozen=True, slots=True)
class _Length:
    """A possible length: index of an equally long dimension (-1: none), and its value."""

    place: int
    value: int


def _described(value: Any, is_size: bool, lengths: list[int]) -> Any:
    if not is_size or type(value) is not int:
        return value
    if value > 1 << 60:
        return "to the end"
    return _Length(lengths.index(value) if value in lengths else -1, value)


def is_same(step: Step, known: Step, rows: int, known_rows: int) -> bool:
    """Return whether two operations match, for calls on these numbers of rows."""
    if step[0] != known[0]:
        return False
    if known[1] is None or step[1] is None:
        return True
    return len(step[1]) == len(known[1]) and all(
        _is_same_number(value, other, rows, known_rows) for value, other in zip(step[1], known[1])
    )


def _is_same_number(value: Any, other: Any, rows: int, known_rows: int) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, _Length):
        in_place = value.place == other.place != -1
        return in_place or value.value == other.value or value.value * known_rows == other.value * rows != 0
    return value == other or (value != value and other != other)

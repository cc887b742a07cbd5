"""What later calls are compared by: the operations that the observed one carried out, and the numbers in them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ronde.rowwise.operation import facts_of, tensors
from ronde.rowwise.rows import Branch

__all__ = ["Sequence", "Step", "step_of"]

Step = tuple[str, tuple[Any, ...]]


@dataclasses.dataclass(slots=True)
class Sequence:
    """The operations of a call.

    Attributes:
        rows: how many the batch had here.
        steps: each operation with the numbers that it was given.
        branches: comparisons with the number of rows.
    """

    rows: int = 0
    steps: list[Step] = dataclasses.field(default_factory=list)
    branches: list[Branch] = dataclasses.field(default_factory=list)


def step_of(func: Any, args: Any, kwargs: Any) -> Step:
    """An operation with its numbers; a length is named by the dimension of an operand that is as long."""
    facts = facts_of(func)
    name = str(func)
    if facts.name == "lift_fresh":
        return name, tuple(args[0].flatten()[:64].tolist())
    lengths = [length for tensor in tensors((*args, *kwargs.values())) for length in tensor.shape]
    found: list[Any] = []
    for place, argument in enumerate(facts.names):
        value = args[place] if place < len(args) else kwargs.get(argument)
        for each in _numbers(value):
            found.append(_described(each, place in facts.sizes, lengths))
    return name, tuple(found)


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, (int, float, str)):
        return [value]
    if isinstance(value, (tuple, list)):
        return [each for item in value for each in _numbers(item)]
    return []


@dataclasses.dataclass(frozen=True, slots=True)
class _Length:
    """A number that may be a length: which dimension of the operands is as long, and how long."""

    place: int
    value: int


def _described(value: Any, is_size: bool, lengths: list[int]) -> Any:
    if not is_size or type(value) is not int:
        return value
    if value > 1 << 60:
        return "to the end"
    return _Length(lengths.index(value) if value in lengths else -1, value)

"""The numbers that a call is made with: those of the module, of what it reaches and of the arguments."""

from __future__ import annotations

import dataclasses
import types
import weakref
import zlib
from collections.abc import Set
from typing import Any

import torch

from ronde.boundary.contents import contents, without_lengths
from ronde.boundary.members import in_cell
from ronde.boundary.noted import is_notable
from ronde.boundary.rehearsal.signature import Behaviour
from ronde.boundary.rehearsal.written_on import settings

__all__ = ["Free", "differ_in_lengths", "digest", "numbers_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Free:
    """What has been proven to decide nothing: numbers, and how much there is in something, by place."""

    numbers: frozenset[int] = frozenset()
    lengths: frozenset[int] = frozenset()

    def without(self, place: int, value: Any) -> Any:
        """A value to compare, without what decides nothing."""
        if place in self.numbers and is_notable(value):
            return type(value)
        return without_lengths(value) if place in self.lengths else value


def numbers_of(behaviour: Behaviour, values: list[Any], free: Free | None) -> tuple[Any, ...]:
    """What is compared from call to call: what is at each place of the module, then each leaf of arguments.

    Args:
        values: the leaves.
        free: what need not be compared; None: all of it must.
    """
    found = behaviour.numbers()
    names, lengths = behaviour.names, behaviour.asks_lengths
    found += [
        settings(value, names) if isinstance(value, torch.Tensor) else _of_argument(value, lengths)
        for value in values
    ]
    return tuple(found) if free is None else tuple([free.without(*each) for each in enumerate(found)])


def _of_argument(value: Any, lengths: bool, depth: int = 4) -> Any:
    """Of a function what it is written as and what it has in hand: the script may make it at every call.

    Modules and methods are told apart by what they are of, however alike these look.
    """
    if isinstance(value, torch.nn.Module):
        return weakref.ref(value), contents(value, lengths=lengths)
    if depth and isinstance(value, types.MethodType):
        return value.__func__, _of_argument(value.__self__, lengths, depth - 1)
    if not (depth and isinstance(value, types.FunctionType)):
        return contents(value, lengths=lengths)
    given = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    held = [*map(in_cell, value.__closure__ or ()), *given]
    return value.__code__, *(_of_argument(each, lengths, depth - 1) for each in held)


def digest(numbers: Any) -> int:
    """A number that stands for those among them, and in tuples of them, that are plain."""
    found = 0
    for value in numbers:
        if isinstance(value, tuple):
            found = zlib.crc32(str(digest(value)).encode(), found)
        elif isinstance(value, (int, float, str)):
            found = zlib.crc32(repr(value).encode(), found)
    return found


def differ_in_lengths(values: Set[Any]) -> bool:
    """Whether all that is found at a place differs in how much there is of something, and in nothing else."""
    return len(values) > 1 and len(set(map(without_lengths, values))) == 1

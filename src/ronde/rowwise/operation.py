"""An operation of torch as a dispatch mode sees it, with its schema."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ronde.rowwise.labels import Label, Mark

__all__ = ["Facts", "ObservedOperation", "facts_of", "numbers_in", "replaced", "tensors", "written"]


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Properties of an operation, independent of its arguments.

    Attributes:
        name: name without namespace, such as "add_".
        is_view: whether results share the memory of an argument.
        is_pointwise: whether each entry depends on entries at the same place, with broadcasting.
        written: arguments that it changes, as (place, name).
        sizes: places of arguments that may be lengths.
        names: names of all arguments.
    """

    name: str
    is_view: bool = False
    is_pointwise: bool = False
    written: tuple[tuple[int, str], ...] = ()
    sizes: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()


@functools.cache
def facts_of(func: Any) -> Facts:
    schema = func._schema
    name = schema.name.split("::")[1]
    arguments = list(enumerate(schema.arguments))
    written = tuple(
        (place, each.name) for place, each in arguments if each.alias_info and each.alias_info.is_write
    )
    return Facts(
        name,
        func.is_view or name in _LIKE_VIEWS,
        torch.Tag.pointwise in func.tags or name in _POINTWISE,
        () if func.is_view else written,
        frozenset(
            place
            for place, each in arguments
            if _kind(each.real_type) == "SymIntType" and each.name not in _NO_LENGTHS
        ),
        tuple(each.name for _, each in arguments),
    )


# Operations that are views except for their memory.
_LIKE_VIEWS = {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"}
# Arguments of the type of lengths that are not lengths.
_NO_LENGTHS = {"shifts", "index"}
# Pointwise operations without torch's tag.
_POINTWISE = {
    *("_to_copy", "copy_", "fill_", "zero_", "masked_fill_", "native_dropout_backward", "lift_fresh_copy"),
    *("floor_divide", "floor_divide_", "contiguous", "isclose", "logical_not_", "glu_"),
}


def _kind(declared: Any) -> str:
    """Return the type of an argument, or of its elements."""
    while declared.kind() in ("ListType", "OptionalType"):
        declared = declared.getElementType()
    return declared.kind()


class ObservedOperation:
    """An operation with its arguments.

    Args:
        of: function that returns the mark of a tensor.
        facts: properties, for a function without a schema.

    Attributes:
        operands: the tensors among the arguments, also in lists.
        marks: mark of each operand, None without one.
    """

    __slots__ = ("args", "facts", "func", "kwargs", "marks", "operands")

    def __init__(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        of: Callable[[torch.Tensor], Mark | None],
        facts: Facts | None = None,
    ) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.facts = facts_of(func) if facts is None else facts
        self.operands = tensors(args)
        if kwargs:
            self.operands += tensors([*kwargs.values()])
        self.marks = [of(operand) for operand in self.operands]

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    @property
    def labels(self) -> list[Label]:
        return [mark for mark in self.marks if type(mark) is Label]

    def pairs(self) -> Iterator[tuple[torch.Tensor, Mark | None]]:
        return zip(self.operands, self.marks, strict=True)

    def mark(self, tensor: torch.Tensor) -> Mark | None:
        """Return the mark of an operand."""
        return next((mark for operand, mark in self.pairs() if operand is tensor), None)

    def given(self, place: int) -> Any:
        """Return the argument at a place of the schema; None if left out."""
        if place < len(self.args):
            return self.args[place]
        return self.kwargs.get(self.facts.names[place])

    @property
    def written(self) -> list[torch.Tensor]:
        """The tensors that the operation changes."""
        return [each for place, _ in self.facts.written for each in tensors(self.given(place))]


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results, also in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in tensors(each)]
    return []


def written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the arguments that an operation changes, according to its schema."""
    places = facts_of(func).written
    return tensors([args[place] if place < len(args) else kwargs.get(name) for place, name in places])


def numbers_in(value: Any) -> list[int]:
    """Return the integers in an argument."""
    if isinstance(value, (tuple, list)):
        return [number for each in value for number in numbers_in(each)]
    return [value] if type(value) is int else []


def replaced(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Apply a function to every argument, nested lists and dicts included."""
    if type(value) is tuple or type(value) is list:
        return type(value)(replaced(each, fn) for each in value)
    if type(value) is dict:
        return {key: replaced(each, fn) for key, each in value.items()}
    return fn(value)

"""Numbers that tell when they decide something.

A number that is another one at every call cannot be observed at each of its values. It need not be, when it
only ever goes into arithmetic: what steers Python is a comparison, and these numbers note that.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from ronde.rowwise.operation import replaced

__all__ = ["Notes", "is_notable", "noted", "plain_number", "without_notes"]

_ARITHMETIC = """
__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__
__mod__ __rmod__ __pow__ __rpow__ __neg__ __pos__ __abs__
""".split()
_DECISIONS = """
__lt__ __le__ __gt__ __ge__ __eq__ __ne__ __bool__ __int__ __round__ __floor__ __ceil__ __trunc__ __hash__
__index__ is_integer bit_length as_integer_ratio
""".split()


def _arithmetic(plain: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        result = plain(self, *others)
        if is_notable(result):
            return noted(result, self.decisions)
        # What others make of it (an array), or a complex root, does not tell what it decides; tensors are
        # watched by themselves.
        if not any(isinstance(other, torch.Tensor) for other in others):
            self.decisions.append(plain.__name__)
        return result

    return method


def _decision(plain: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        self.decisions.append(plain.__name__)
        return plain(self, *others)

    return method


def _members(kind: type) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for names, wrap in ((_ARITHMETIC, _arithmetic), (_DECISIONS, _decision)):
        members.update({name: wrap(getattr(kind, name)) for name in names if hasattr(kind, name)})
    return members


_Float: Any = type("NotedFloat", (float,), _members(float))
_Int: Any = type("NotedInt", (int,), _members(int))


def is_notable(value: Any) -> bool:
    """Whether `noted` can tell what a value decides."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def noted(value: Any, decisions: list[str]) -> Any:
    """`value`, a number that appends to `decisions` when it is compared, or made another kind of number."""
    if isinstance(value, numpy.generic):
        value = value.item()
    kind = _Float if isinstance(value, float) else _Int
    number = kind(value)
    number.decisions = decisions
    return number


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


class Notes:
    """Numbers of a call that note what they decide.

    Args:
        places: where numbers are that are others at each call: a namespace and a name in it.

    Attributes:
        decisions: what was asked of one of them.
    """

    def __init__(self, places: Sequence[tuple[Any, str]]) -> None:
        self._places = places
        self.decisions: list[str] = []

    def of(self, value: Any) -> Any:
        return noted(value, self.decisions) if is_notable(value) else value

    @contextmanager
    def put(self) -> Iterator[None]:
        """Inside, the numbers at these places are such."""
        for namespace, name in self._places:
            _write(namespace, name, self.of(_read(namespace, name)))
        try:
            yield
        finally:
            for namespace, name in self._places:
                _write(namespace, name, plain_number(_read(namespace, name)))


def _read(namespace: Any, name: str) -> Any:
    return namespace.cell_contents if isinstance(namespace, types.CellType) else namespace.get(name)


def _write(namespace: Any, name: str, value: Any) -> None:
    if isinstance(namespace, types.CellType):
        namespace.cell_contents = value
    elif isinstance(namespace, dict) and name in namespace:
        namespace[name] = value

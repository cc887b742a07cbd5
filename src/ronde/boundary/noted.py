"""Numbers and texts that tell when they decide something.

A number that is another one at every call cannot be rehearsed at each of its values. It need not be, when it
only ever goes into arithmetic: what steers Python is a comparison, and these numbers note that. Of a text
everything is noted that is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

__all__ = ["is_notable", "is_noted", "noted"]

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


_NOT_ASKED = {"__new__", "__getattribute__", "__doc__"}
_Float: Any = type("NotedFloat", (float,), _members(float))
_Int: Any = type("NotedInt", (int,), _members(int))
_Text: Any = type(
    "NotedText", (str,), {name: _decision(getattr(str, name)) for name in vars(str).keys() - _NOT_ASKED}
)


def is_notable(value: Any) -> bool:
    """Whether `noted` can tell what a value decides."""
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def is_noted(value: Any) -> bool:
    """Whether a value, or one in a list of them, tells when it decides something."""
    if isinstance(value, (list, tuple)):
        return any(map(is_noted, value))
    return isinstance(value, (_Float, _Int, _Text))


def noted(value: Any, decisions: list[str]) -> Any:
    """`value`, a number or text that appends to `decisions` when it is compared or asked for something."""
    if isinstance(value, numpy.generic):
        value = value.item()
    kind = _Text if isinstance(value, str) else _Float if isinstance(value, float) else _Int
    number = kind(value)
    number.decisions = decisions
    return number

"""The names that torch gives its arguments, where a script uses numpy's: torch's own functions take both."""

from __future__ import annotations

from types import FunctionType
from typing import Any

__all__ = ["spelled"]

# What torch's parser of arguments takes for its own words (`numpy_compatibility_arg_names` there).
_NUMPYS = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}
_FIRST = ("input", "x", "a", "x1")


def spelled(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with torch's names, its first argument by place.

    Functions written in Python, such as `torch.nn.functional.softmax`, take no other names than their own.
    """
    if not kwargs:
        return args, kwargs
    native = not isinstance(func, FunctionType)
    if not args and "condition" not in kwargs:  # which `torch.where` has first
        first = next((name for name in (_FIRST if native else _FIRST[:1]) if name in kwargs), None)
        if first is not None:
            args, kwargs = (kwargs[first],), {name: kwargs[name] for name in kwargs if name != first}
    return args, {_NUMPYS.get(name, name): value for name, value in kwargs.items()} if native else kwargs

"""Variables that the code of a module names: global ones, those of enclosing functions, and what hooks are made of.

A call that is unwound must not count in them twice.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

from ronde.rowwise.held import VARIABLE, Bindings

__all__ = ["variables"]

_LIBRARIES = ("torch.", "transformers.", "numpy.")


def variables(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """What the code of a tree of modules names, as roots of what is held."""
    seen: set[int] = set()
    pending = [function for part in module.modules() for function in _functions(part)]
    while pending:
        function = pending.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        if not isinstance(function, types.FunctionType):
            yield "an object that is called", function
            continue
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield f"{VARIABLE} {name}", cell
        names = _names(function.__code__) & function.__globals__.keys()
        if names:
            yield VARIABLE, Bindings(function.__globals__, names)
        pending += filter(_is_users, map(function.__globals__.get, names))


def _functions(part: torch.nn.Module) -> Iterator[Any]:
    """Those that a call of a module runs, or may run, but for torch's own."""
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    own = (
        value for value in vars(part).values() if isinstance(value, (types.FunctionType, types.MethodType))
    )
    for function in (*_methods(type(part)), *hooks, *own):
        bound = getattr(function, "__self__", None)
        if bound is not None and not isinstance(bound, torch.nn.Module):
            yield bound
        plain = getattr(function, "__func__", function)
        if not isinstance(plain, types.FunctionType) or _is_users(plain):
            yield plain


@functools.lru_cache(maxsize=4096)
def _methods(kind: type) -> tuple[types.FunctionType, ...]:
    return tuple(
        value
        for each in kind.__mro__
        for value in vars(each).values()
        if isinstance(value, types.FunctionType)
    )


def _is_users(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith(_LIBRARIES)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that a function and those inside it use."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))

"""Variables that the code of a module names: global, of enclosing functions, attributes of classes.

A call that is unwound must not count in them twice.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ronde.rowwise.held import VARIABLE, Bindings, OfClass

__all__ = ["caches", "variables"]

_LIBRARIES = ("torch.", "transformers.", "numpy.", "builtins.")


def variables(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """What the code of a tree of modules names, as roots of what is held."""
    seen: set[int] = set()
    for kind in {kind for part in module.modules() for kind in type(part).__mro__}:
        if not f"{kind.__module__}.".startswith(_LIBRARIES):
            yield kind.__name__, OfClass(kind)
    pending = [called for part in module.modules() for called in _called(part)]
    while pending:
        called = pending.pop()
        if id(called) in seen:
            continue
        seen.add(id(called))
        if type(called) is functools.partial:
            pending += [called.func, *called.args, *called.keywords.values()]
        elif type(called) is types.MethodType:
            pending.append(called.__func__)
            if not issubclass(type(called.__self__), (torch.nn.Module, type)):
                yield f"an object with {called.__name__}", called.__self__
        elif _is_users(called):
            yield from _of_function(called)
            pending += _used(called)
        elif type(called) is functools._lru_cache_wrapper:
            pending.append(called.__wrapped__)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"{VARIABLE} {name}", cell
    yield f"{VARIABLE} {function.__name__}", vars(function)
    yield VARIABLE, Bindings(function.__globals__, _names(function.__code__))


def _used(function: types.FunctionType) -> Iterator[Any]:
    """What it may call."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents
    yield from map(function.__globals__.get, _names(function.__code__))


def _called(part: torch.nn.Module) -> Iterator[Any]:
    """What a call of a module runs, or may run."""
    for hook in (*part._forward_pre_hooks.values(), *part._forward_hooks.values()):
        yield hook if type(hook) in _CALLABLE else types.MethodType(type(hook).__call__, hook)
    yield from _methods(type(part))
    yield from (value for value in vars(part).values() if type(value) in _CALLABLE)


_CALLABLE = (types.FunctionType, types.MethodType, functools.partial)


@functools.lru_cache(maxsize=4096)
def _methods(kind: type) -> tuple[types.FunctionType, ...]:
    return tuple(
        value for each in kind.__mro__ for value in vars(each).values() if type(value) is types.FunctionType
    )


def caches(module: torch.nn.Module) -> list[Any]:
    """Functions with a cache among what the code of a tree of modules names."""
    found = (value for root in variables(module) for value in _values(root[1]))
    return [value for value in found if type(value) is functools._lru_cache_wrapper]


def _values(root: Any) -> Iterable[Any]:
    if type(root) is Bindings:
        return [root.variables.get(name) for name in root.names]
    return []


def _is_users(value: Any) -> bool:
    return type(value) is types.FunctionType and not (value.__module__ or "").startswith(_LIBRARIES)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that a function and those inside it use."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))

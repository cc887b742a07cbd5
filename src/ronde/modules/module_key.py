"""Traits of a module that affect its run, besides arguments.

They are modes, hooks, layers, and plain attributes. They are read at every call of a model, so the places to
look at are found once, and reading costs microseconds.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch
from torch.nn.parameter import is_lazy

from ronde.modules.referenced_globals import NamedPlace, contents, named_places
from ronde.modules.torchscript import is_training
from ronde.patching.caller import is_users
from ronde.patching.torch_internals import module_internals
from ronde.rowwise.undo import ContainerSnapshot, is_open

__all__ = ["PLAIN", "Traits", "comparable", "used_up_by"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_HELD = "_parameters", "_buffers"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BOOKKEEPING = vars(torch.nn.Module()).keys()
# Largest number of entries of a container that are compared, and the depth.
_LONG, _DEEP = 16, 2


class Traits:
    """Traits of one module: the places that decide how it behaves.

    Attributes:
        kind: structure of the module: results are shared by modules of the same structure.
        places: places of plain attributes and variables that may be numbers.
        variables: variables that its code names beside the module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        # No reference to the module itself, so that it can be freed.
        parts = list(module.modules())
        self._own = [vars(part) for part in parts]
        # TorchScript modules have no such entry; the attribute is read instead.
        self._scripted = [part for part in parts if "training" not in vars(part)]
        self._children = [(part._modules, list(part._modules.values())) for part in parts if part._modules]
        self._sizes = [len(own) for own in self._own]
        self._hooks = [getattr(part, kind) for part in parts for kind in _HOOKS]
        self._parameters = [part._parameters for part in parts if part._parameters]
        self._functions = [
            (own, name, value)
            for own in self._own
            for name, value in own.items()
            if name not in _BOOKKEEPING and callable(value) and not isinstance(value, torch.nn.Module)
        ]
        self.variables, names = named_places(module)
        self.places = [place for part in parts for place in _plain_attributes(part, names)]
        self.places += self.variables
        self.kind = _kind(module), tuple([place.name for place in self.places])

    def outdated(self) -> bool:
        """Return whether layers or attributes were added, removed or replaced.

        Places must then be found anew.
        """
        if [len(own) for own in self._own] != self._sizes:
            return True
        for members, children in self._children:
            if list(members.values()) != children:
                return True
        return any(members.get(name) is not value for members, name, value in self._functions)

    def hooked(self) -> bool:
        """Return whether the user has hooks on the module, its parts or all modules.

        Hooks on parameters count too.
        """
        for hooks in self._hooks:
            if hooks and not all(map(_is_torchs, hooks.values())):
                return True
        for parameters in self._parameters:
            for parameter in parameters.values():
                if parameter is not None and parameter._backward_hooks:
                    return True
        return any(not _is_torchs(hook) for hook in _global_hooks())

    def modes(self) -> tuple[Any, ...]:
        """Return the traits that are compared exactly: training modes and hooks."""
        training = [own.get("training") for own in self._own]
        scripted = [is_training(part) for part in self._scripted]
        return (*training, *scripted, self.hooked())

    def numbers(self) -> tuple[Any, ...]:
        """Return the present values at all places, in comparable form."""
        return tuple([comparable(place.read()) for place in self.places])

    def outside(self) -> list[tuple[str, Any]]:
        """Return the variables that its code names, with their values."""
        return contents(self.variables)

    def is_lazy(self) -> bool:
        """Return whether its first call makes layers."""
        held = (value for own in self._own for kind in _HELD for value in own.get(kind, {}).values())
        return any(map(is_lazy, held))


def used_up_by(module: torch.nn.Module, outside: Iterable[tuple[str, Any]]) -> str:
    """Describe a variable that reading would use up (an iterator), or "".

    The module's code names it. A call that reads it could not be unwound, nor repeated.

    Args:
        outside: variables with their values.
    """
    return next(iter((*ContainerSnapshot.by(module).used_up, *ContainerSnapshot(outside).used_up)), "")


def _plain_attributes(part: torch.nn.Module, names: set[str]) -> Iterator[NamedPlace]:
    """Yield places that may hold numbers, texts and flags.

    For the user's classes these are places that their code names; for classes of libraries all, because their
    code is not followed; for torch's own layers only numbers.
    """
    torchs = type(part).__module__.startswith("torch.")
    users = all(is_users(each) for each in type(part).__mro__ if each not in (torch.nn.Module, object))
    for place in _plain(vars(part)):
        if place.name in _BOOKKEEPING or (users and place.name not in names):
            continue
        if not torchs or type(place.read()) is float:
            yield place


def _plain(own: dict[str, Any]) -> Iterator[NamedPlace]:
    for name, value in own.items():
        if comparable(value) is not None or value is None:
            yield NamedPlace(name, own)


def comparable(value: Any, depth: int = _DEEP) -> Any:
    """Return a key for a plain value, a short container or an object's settings.

    None for all else.
    """
    kind = type(value)
    if kind in PLAIN:
        return value if value == value else repr(value)  # not a number
    if issubclass(kind, (numpy.generic, enum.Enum)):
        return repr(value)
    if not depth or issubclass(kind, (torch.Tensor, torch.nn.Module, types.ModuleType, type)):
        return None
    if kind is numpy.ndarray:
        return (value.shape, *value.ravel().tolist()) if value.size <= _LONG else None
    if kind in (list, tuple, set, frozenset):
        return _comparable_items(value, depth)
    if kind is dict:
        return _comparable_items([*value, *value.values()], depth)
    if not is_open(kind):
        return None
    settings = getattr(value, "__dict__", None)
    if settings is None:
        return _in_slots(value, kind)
    plain = [(name, comparable(each, 0)) for name, each in settings.items()]
    return kind.__qualname__, *[each for each in plain if each[1] is not None]


def _in_slots(value: Any, kind: type) -> Any:
    names = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ()) if hasattr(value, name)]
    if not names or not is_users(kind):
        return None
    return kind.__qualname__, *[(name, comparable(getattr(value, name), 0)) for name in names]


def _comparable_items(values: Any, depth: int) -> Any:
    """Return the length, and the items if they are few and comparable."""
    if len(values) > _LONG:
        return (len(values),)
    found = [comparable(each, depth - 1) for each in values]
    known = all(each is not None or own is None for each, own in zip(found, values))
    return (len(found), *found) if known else (len(found),)


class _Closed(Exception):
    """Raised for an object that cannot be inspected."""


def _kind(module: torch.nn.Module) -> Any:
    """Describe the structure of a module: classes, names and settings.

    A unique key where not all can be compared.
    """
    try:
        return tuple((path, *_built(part)) for path, part in module.named_modules())
    except _Closed:
        return object()


def _built(part: torch.nn.Module) -> tuple[Any, ...]:
    own = vars(part)
    # Not by shapes, which lazy layers and parameters in parts do not have.
    held = [(name, value is None) for kind in _HELD for name, value in own.get(kind, {}).items()]
    others = [(name, _described(value)) for name, value in own.items() if name not in _BOOKKEEPING]
    return type(part), tuple(held), tuple(others)


def _described(value: Any, depth: int = _DEEP) -> Any:
    """Describe an attribute; every plain value is described as "plain".

    Plain values are compared at every call.

    Raises:
        _Closed: the object may hold anything, or the function closes over something.
    """
    kind = type(value)
    if kind in PLAIN:
        return "plain"
    if issubclass(kind, torch.Tensor):
        return kind
    if kind in (list, tuple) and depth and len(value) <= _LONG:
        return kind, *(_described(each, depth - 1) for each in value)
    if kind is dict and depth and len(value) <= _LONG:
        return kind, *((_described(key, 0), _described(each, depth - 1)) for key, each in value.items())
    if kind is types.FunctionType and not (value.__closure__ or value.__defaults__ or value.__kwdefaults__):
        return value
    if kind is types.BuiltinFunctionType and isinstance(value.__self__, (types.ModuleType, type, type(None))):
        return value
    raise _Closed


def _is_torchs(hook: Any) -> bool:
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return owner.split(".")[0] == "torch"


def _global_hooks() -> Iterator[Any]:
    yield from module_internals._global_forward_hooks.values()
    yield from module_internals._global_forward_pre_hooks.values()
    yield from module_internals._global_backward_hooks.values()
    yield from module_internals._global_backward_pre_hooks.values()

"""What else but its arguments decides how a module runs: modes, hooks, layers, plain attributes.

Asked at every call of a model, so the places to look at are found once, and asking costs microseconds.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch
from torch.nn.parameter import is_lazy

from ronde.modules.named_places import Place, contents, named_places
from ronde.modules.torchscript import is_training
from ronde.patching.caller import is_users
from ronde.patching.torch_internals import module_internals
from ronde.rowwise.undo import Held, is_open

__all__ = ["PLAIN", "Traits", "comparable", "used_up_by"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_HELD = "_parameters", "_buffers"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BOOKKEEPING = vars(torch.nn.Module()).keys()
# Of a container so many entries are compared, so deep.
_LONG, _DEEP = 16, 2


class Traits:
    """The places that decide how one module behaves.

    Attributes:
        kind: how it is built: modules that are built alike share what is found of them.
        places: of plain attributes and variables that may be numbers.
        variables: what its code names beside the module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        # Not the module itself: whoever knows its traits is to forget it when the module goes.
        parts = list(module.modules())
        self._own = [vars(part) for part in parts]
        # TorchScript has no such entry: its modules are asked.
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
        """Whether layers or attributes have come, gone or been replaced: places are to be found anew."""
        if [len(own) for own in self._own] != self._sizes:
            return True
        for members, children in self._children:
            if list(members.values()) != children:
                return True
        return any(members.get(name) is not value for members, name, value in self._functions)

    def hooked(self) -> bool:
        """Whether the user has hooks on the module, a part or a parameter of it, or on all modules."""
        for hooks in self._hooks:
            if hooks and not all(map(_is_torchs, hooks.values())):
                return True
        for parameters in self._parameters:
            for parameter in parameters.values():
                if parameter is not None and parameter._backward_hooks:
                    return True
        return any(not _is_torchs(hook) for hook in _global_hooks())

    def modes(self) -> tuple[Any, ...]:
        """What is compared as it is: training or not, and hooks."""
        training = [own.get("training") for own in self._own]
        scripted = [is_training(part) for part in self._scripted]
        return (*training, *scripted, self.hooked())

    def numbers(self) -> tuple[Any, ...]:
        """What is at each place now, as something to compare."""
        return tuple([comparable(place.read()) for place in self.places])

    def outside(self) -> list[tuple[str, Any]]:
        """The variables that its code names, and what they hold."""
        return contents(self.variables)

    def is_lazy(self) -> bool:
        """Whether its first call makes layers."""
        held = (value for own in self._own for kind in _HELD for value in own.get(kind, {}).values())
        return any(map(is_lazy, held))


def used_up_by(module: torch.nn.Module, outside: Iterable[tuple[str, Any]]) -> str:
    """What its code names that is used up as it is read (an iterator), in words; "" where nothing is.

    No call that reads it could be unwound, or be made again.

    Args:
        outside: variables, and what they hold.
    """
    return next(iter((*Held.by(module).used_up, *Held(outside).used_up)), "")


def _plain_attributes(part: torch.nn.Module, names: set[str]) -> Iterator[Place]:
    """Of what may be or hold numbers, texts and flags.

    Of the user's classes those that code names; what libraries' classes hold is read by code that is not
    followed; of torch's own layers only numbers are set anew.
    """
    torchs = type(part).__module__.startswith("torch.")
    users = all(is_users(each) for each in type(part).__mro__ if each not in (torch.nn.Module, object))
    for place in _plain(vars(part)):
        if place.name in _BOOKKEEPING or (users and place.name not in names):
            continue
        if not torchs or type(place.read()) is float:
            yield place


def _plain(own: dict[str, Any]) -> Iterator[Place]:
    for name, value in own.items():
        if comparable(value) is not None or value is None:
            yield Place(name, own)


def comparable(value: Any, depth: int = _DEEP) -> Any:
    """A plain value, a short container of such, or the settings in an object, as a key; None for all else."""
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
    """How many there are; and what, where they are few and can be compared."""
    if len(values) > _LONG:
        return (len(values),)
    found = [comparable(each, depth - 1) for each in values]
    known = all(each is not None or own is None for each, own in zip(found, values))
    return (len(found), *found) if known else (len(found),)


class _Closed(Exception):
    """Something that cannot be looked through."""


def _kind(module: torch.nn.Module) -> Any:
    """How a module is built: classes, names and settings; a key of its own where not all can be compared."""
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
    """What an attribute is; of plain values only that, as they are compared at every call.

    Raises:
        _Closed: for an object that may hold anything, and for a function that closes over something.
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

"""What modules, variables or the arguments of a call hold in containers and objects; and the way back.

Nothing here runs code of what it looks at: a list of somebody's own may do anything when it is asked.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from ronde.rowwise.generators import GENERATORS
from ronde.rowwise.rows import Rows

__all__ = ["VARIABLE", "Bindings", "Held", "OfClass"]

VARIABLE = "the variable"
_DEPTH = 6
# So many containers are looked into, and those with no more entries; arrays of no more bytes are copied.
_MOST, _LARGEST, _BYTES = 1 << 16, 1 << 12, 1 << 20
# What torch keeps on each module: tables of hooks, mostly empty.
_OF_EVERY_MODULE = vars(torch.nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
# Objects of these are not looked into, nor those of the libraries.
_CLOSED = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type),
    *(weakref.ReferenceType, weakref.ProxyType, weakref.CallableProxyType),
)
_LIBRARIES = {"builtins", "torch", "numpy", "threading", "logging", "queue", "multiprocessing", "concurrent"}


@dataclasses.dataclass(frozen=True, slots=True)
class Bindings:
    """Some of the global variables of a file.

    Attributes:
        variables: all of them.
        names: those that are meant, whether they are there or not.
    """

    variables: dict[str, Any]
    names: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class OfClass:
    """The attributes of a class that are values."""

    kind: type


class Held:
    """What roots hold: each container and object with its content.

    Args:
        roots: each with its name.

    Attributes:
        tensors: the tensors among that, and their names.
        counts: names of numbers of rows.
        generators: random generators.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.counts: list[str] = []
        self.generators: list[Any] = []
        self._contents: dict[int, tuple[Any, Any]] = {}
        for name, root in roots:
            self._add(name, root, _DEPTH)

    def _add(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self.tensors.append((name, value))
        elif issubclass(kind, Rows):
            self.counts.append(name)
        elif issubclass(kind, GENERATORS):
            self.generators.append(value)
        elif depth:
            by_attributes = issubclass(kind, torch.nn.Module) or kind is types.FunctionType
            self._look_into(name, vars(value) if by_attributes else value, depth)

    def _look_into(self, name: str, value: Any, depth: int) -> None:
        if id(value) in self._contents or len(self._contents) > _MOST:
            return
        content = _content(value)
        if content is None:
            return
        self._contents[id(value)] = value, content
        for key, each in _entries(content) if len(content) <= _LARGEST else ():
            if key not in _OF_EVERY_MODULE:
                self._add(_joined(name, key), each, depth - 1)

    def changed(self) -> bool:
        """Whether something holds something else by now."""
        return any(not _is_same(_content(value), before) for value, before in self._contents.values())

    def restore(self) -> None:
        for value, before in self._contents.values():
            if not _is_same(_content(value), before):
                _refill(value, before)


def _content(value: Any) -> Any:
    """What a container or an object holds, as a container of its own; None for what is neither."""
    kind = type(value)
    if issubclass(kind, dict):
        return dict(value.items() if kind is collections.OrderedDict else dict.items(value))
    for container in (list, tuple, set, frozenset, collections.deque):
        if issubclass(kind, container):
            return list(container.__iter__(value))
    if kind is numpy.ndarray:
        return value.copy() if value.nbytes <= _BYTES and value.ndim and not value.dtype.hasobject else None
    if kind is types.CellType:
        return {"": value.cell_contents} if _is_filled(value) else {}
    if kind is Bindings:
        return {name: value.variables[name] for name in value.names if name in value.variables}
    if kind is OfClass:
        return {name: each for name, each in vars(value.kind).items() if _is_value(name, each)}
    return None if issubclass(kind, _CLOSED) or _home(kind) in _LIBRARIES else _attributes(value)


def _home(kind: type) -> str:
    return str(kind.__module__).split(".")[0]


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_value(name: str, attribute: Any) -> bool:
    kind = type(attribute)
    return not (name.startswith("__") or issubclass(kind, _CLOSED) or hasattr(kind, "__get__"))


def _attributes(value: Any) -> dict[str, Any] | None:
    """Those of an object, in slots too; None where it has none."""
    found: dict[str, Any] = {}
    slots = list(_slots(type(value)))
    try:
        found.update(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        if not slots:
            return None
    for name, slot in slots:
        with contextlib.suppress(AttributeError):  # an empty one
            found[name] = slot.__get__(value)
    return found


def _slots(kind: type) -> Iterator[tuple[str, Any]]:
    for each in kind.__mro__:
        for name, attribute in vars(each).items():
            if type(attribute) is types.MemberDescriptorType and not name.startswith("__"):
                yield name, attribute


def _entries(content: Any) -> list[tuple[Any, Any]]:
    if isinstance(content, numpy.ndarray):
        return []
    return list(content.items()) if isinstance(content, dict) else [("", each) for each in content]


def _joined(name: str, key: Any) -> str:
    """The name of an entry; a module's parameters, buffers and modules have it as attributes do."""
    if type(key) is not str or key in ("", "_parameters", "_buffers", "_modules"):
        return name
    if name == VARIABLE:
        return f"{VARIABLE} {key}"
    return f"{name}.{key}" if name else key


def _is_same(now: Any, before: Any) -> bool:
    if type(now) is not type(before) or len(now) != len(before):
        return False
    if isinstance(now, numpy.ndarray):
        return now.tobytes() == before.tobytes()
    if isinstance(now, dict):
        pairs = zip(now.items(), before.items(), strict=True)
        return all(key is other and value is held for (key, value), (other, held) in pairs)
    return all(value is held for value, held in zip(now, before, strict=True))


def _refill(value: Any, before: Any) -> None:
    """Have a container or an object hold what it did."""
    kind = type(value)
    if kind is Bindings:
        for name in value.names - before.keys():
            value.variables.pop(name, None)
        value.variables.update(before)
    elif kind is numpy.ndarray:
        value[...] = before
    elif kind is types.CellType:
        value.cell_contents = before[""]
    elif kind is OfClass:
        for name in (_content(value) or {}).keys() - before.keys():
            delattr(value.kind, name)
        for name, held in before.items():
            setattr(value.kind, name, held)
    elif issubclass(kind, (dict, set)):
        base = next(each for each in (collections.OrderedDict, dict, set) if issubclass(kind, each))
        base.clear(value)
        base.update(value, before)
    elif issubclass(kind, (list, collections.deque)):
        base = list if issubclass(kind, list) else collections.deque
        base.clear(value)
        base.extend(value, before)
    elif not issubclass(kind, (tuple, frozenset)):
        for name in (_attributes(value) or {}).keys() - before.keys():
            object.__delattr__(value, name)
        for name, held in before.items():
            object.__setattr__(value, name, held)

"""Variables that a module's code names: globals, closures, attributes of classes.

They are found by reading the user's code, starting with the methods of the module's classes: names that a
function loads, then the functions that it calls by such names. Code of libraries is not read.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ronde.patching.caller import is_users, is_users_module

__all__ = ["NamedPlace", "contents", "named_places"]

_MOST = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class NamedPlace:
    """A variable: an entry of a namespace, or a cell of a closure."""

    name: str
    namespace: Any

    def read(self) -> Any:
        if isinstance(self.namespace, types.CellType):
            try:
                return self.namespace.cell_contents
            except ValueError:  # not assigned yet
                return None
        return self.namespace.get(self.name)

    def put(self, value: Any) -> None:
        """Restore the value of the variable.

        An attribute of a class, which only code can set, stays as it is.
        """
        if isinstance(self.namespace, types.CellType):
            self.namespace.cell_contents = value
        elif isinstance(self.namespace, dict):
            self.namespace[self.name] = value


def contents(places: Iterable[NamedPlace]) -> list[tuple[str, Any]]:
    """Return the names of variables with their values."""
    return [(place.name, place.read()) for place in places]


def named_places(module: torch.nn.Module) -> tuple[list[NamedPlace], set[str]]:
    """Return the variables that the code of a module and its submodules names.

    Second: all names in that code.
    """
    walk = _Walk()
    for part in module.modules():
        walk.visit_class(type(part))
        for value in vars(part).values():
            walk.visit(value)
    return list(walk.places.values()), walk.names


class _Walk:
    """Walk over code, with its findings.

    Attributes:
        places: variables, by namespace and name.
        names: all names that the code uses, including attributes and strings, which may be names for
            `getattr`.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.places: dict[tuple[int, str], NamedPlace] = {}
        self._seen: set[int] = set()

    def visit(self, value: Any) -> None:
        """Read functions and classes of the user's recursively."""
        if type(value) is types.MethodType:
            value = value.__func__
        if type(value) is types.FunctionType:
            self._visit_function(inspect.unwrap(value))
        elif issubclass(type(value), type) and not issubclass(value, torch.nn.Module):
            self.visit_class(value)

    def visit_class(self, kind: type) -> None:
        for each in kind.__mro__:
            if id(each) in self._seen or not is_users(each):
                continue
            self._seen.add(id(each))
            for member in vars(each).values():
                for function in _functions(member):
                    self._visit_function(inspect.unwrap(function))

    def _visit_function(self, function: Any) -> None:
        if not isinstance(function, types.FunctionType) or id(function.__code__) in self._seen:
            return
        if not is_users(function) or len(self.places) > _MOST:
            return
        self._seen.add(id(function.__code__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self._found(NamedPlace(name, cell))
        names = set(_names(function.__code__))
        self.names |= names
        for name in names & function.__globals__.keys():
            self._found(NamedPlace(name, function.__globals__), names)

    def _found(self, place: NamedPlace, names: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        key = id(place.namespace), place.name
        if key in self.places:
            return
        value = place.read()
        if type(value) is types.ModuleType:
            if is_users_module(value):
                for name in names & vars(value).keys():
                    self._found(NamedPlace(name, vars(value)), names)
            return
        if issubclass(type(value), type):
            for name in names & vars(value).keys() if is_users(value) else ():
                self._found(NamedPlace(name, vars(value)))
        self.visit(value)
        if not any("__call__" in vars(each) for each in type(value).__mro__):
            self.places[key] = place


def _functions(member: Any) -> Iterator[Any]:
    if isinstance(member, property):
        yield from (each for each in (member.fget, member.fset) if each is not None)
    elif isinstance(member, (staticmethod, classmethod)):
        yield member.__func__
    elif isinstance(member, types.FunctionType):
        yield member


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield names and texts in a piece of code, with the functions inside it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)
        elif isinstance(each, str):
            yield each

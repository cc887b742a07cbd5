"""What a user's code reaches past its arguments: global variables, closures, defaults, what these lead to.

Found by reading the code, not by running it: the names that a function loads, the functions that it calls by
such names, their names, and so on. Libraries are not followed.
"""

from __future__ import annotations

import argparse
import collections
import configparser
import contextvars
import dataclasses
import dis
import functools
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
import torch.utils.data

from ronde.boundary.cached_functions import CACHED, results
from ronde.boundary.members import CELLS, LISTS, attributes, entries, pairs
from ronde.boundary.weak_references import behind
from ronde.patching.caller import is_users, is_users_module

__all__ = [
    "AROUND_A_METHOD",
    "BOOKKEEPING",
    "GENERATORS",
    "SIMPLE",
    "Place",
    "Reach",
    "imported_in",
    "is_data",
    "method_in",
    "names_in",
]

# What holds nothing else.
SIMPLE = (bool, int, float, complex, str, bytes, type(None))
GENERATORS = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)

_ENOUGH = 20_000
_FEW = 64
# What every module of torch has for its own bookkeeping; the modules inside are followed apart.
BOOKKEEPING = vars(torch.nn.Module()).keys()


class _Cell(Mapping[str, Any]):
    """A variable of an enclosing function, read as an entry of a namespace."""

    def __init__(self, name: str, cell: types.CellType) -> None:
        self.name, self.cell = name, cell

    def __getitem__(self, key: str) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:  # not assigned yet
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1


class _Context(Mapping[str, Any]):
    """What a context variable is here, read as an entry of a namespace."""

    def __init__(self, variable: contextvars.ContextVar[Any]) -> None:
        self.variable = variable

    def __getitem__(self, key: str) -> Any:
        try:
            return self.variable.get()
        except LookupError:  # not set yet
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        return iter((self.variable.name,))

    def __len__(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A variable: an entry of a namespace.

    Attributes:
        owner: whose namespace it is where it cannot be written itself (a class), else None.
    """

    name: str
    namespace: Mapping[str, Any]
    owner: Any = None

    @property
    def key(self) -> tuple[int, str]:
        """The same for every place that is this variable."""
        within = self.namespace
        if isinstance(within, _Cell):
            return id(within.cell), self.name
        return id(within.variable if isinstance(within, _Context) else self.owner or within), self.name

    def read(self) -> Any:
        return self.namespace.get(self.name)

    def write(self, value: Any) -> None:
        if isinstance(self.namespace, _Cell):
            self.namespace.cell.cell_contents = value
        elif isinstance(self.namespace, _Context):
            self.namespace.variable.set(value)
        elif self.owner is not None:
            setattr(self.owner, self.name, value)
        else:
            self.namespace[self.name] = value  # pyright: ignore[reportIndexIssue]


@functools.lru_cache(maxsize=4096)
def is_data(kind: type) -> bool:
    """Whether objects of this type are no more than what they keep: settings, books, what users write."""
    known = issubclass(kind, _NAMESPACES) or kind in _CONTAINERS or kind.__name__ in _CONFIGURATIONS
    return known or dataclasses.is_dataclass(kind) or is_users(kind)


# Classes of libraries that only hold settings, or a dictionary of them.
_CONFIGURATIONS = {"Namespace", "EasyDict", "AttrDict", "ConfigDict"}
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
# Containers of Python's that are written in Python; what libraries make of them is their own.
_CONTAINERS: set[type] = {
    *(collections.UserDict, collections.UserList, collections.UserString, collections.ChainMap),
    *(configparser.ConfigParser, configparser.RawConfigParser),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
}


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Global names and all names that a piece of code uses, with the functions inside it."""
    loads = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"}
    found = {step.argval for step in dis.get_instructions(code) if step.opname in loads}
    every = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            inner_globals, inner_every = _names(inner)
            found |= inner_globals
            every |= inner_every
    return frozenset(found), frozenset(every)


def names_in(code: types.CodeType) -> frozenset[str]:
    """All names that a piece of code uses, with the functions inside it."""
    return _names(code)[1]


def imported_in(function: types.FunctionType) -> list[types.ModuleType]:
    """The user's modules that a function imports in its code, as far as they are loaded."""
    package = function.__globals__.get("__package__")
    names = (each for name in _imports(function.__code__) for each in (name, f"{package}.{name}"))
    loaded = (sys.modules.get(name) for name in names)
    return [each for each in loaded if isinstance(each, types.ModuleType) and is_users_module(each)]


@functools.lru_cache(maxsize=4096)
def _imports(code: types.CodeType) -> frozenset[str]:
    inner = (_imports(each) for each in code.co_consts if isinstance(each, types.CodeType))
    own = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
    return frozenset(own).union(*inner)


@functools.lru_cache(maxsize=4096)
def _texts(code: types.CodeType) -> frozenset[str]:
    """Texts in a piece of code, and the functions inside it, of which the name of a method may be made."""
    found = {each for each in code.co_consts if type(each) is str and len(each) > 1 and each.isidentifier()}
    return frozenset(found).union(
        *(_texts(each) for each in code.co_consts if isinstance(each, types.CodeType))
    )


class Reach:
    """Everything that was reached from the roots given to `visit`.

    Args:
        libraries: look into objects of libraries too. Never put back what is found there: it may be
            the state of a compiler.

    Attributes:
        places: variables that code names.
        values: objects that were come by, each once, with the name of what led there.
        modules: those of libraries that code names, by these names.
    """

    def __init__(self, *, libraries: bool = False) -> None:
        self._libraries = libraries
        self.places: list[Place] = []
        self.values: list[tuple[str, Any]] = []
        self.modules: dict[str, types.ModuleType] = {}
        self._seen: set[Any] = set()
        self._attributes: set[str] = set()
        # What names may be made of: texts that objects keep, and those in code.
        self._texts: set[str] = set()
        self._ends: set[str] = set()
        self._under = ""
        # Classes come by, with the methods that calls begin with and the name that led there.
        self._classes: dict[tuple[type, tuple[str, ...]], str] = {}
        self._gone_through = 0

    @property
    def names(self) -> set[str]:
        """Names that the code reached so far uses, of attributes and of functions."""
        return self._attributes

    def generators(self) -> list[Any]:
        return [value for _, value in self.values if isinstance(value, GENERATORS)]

    def visit(self, value: Any, name: str = "") -> None:
        """Follow a value: a function, a class, an object with methods, a container.

        Which methods of a class are called may be found out after the class: a base class calls those of
        its subclasses, a model those of its parts. So classes are gone through until nothing is new.

        Args:
            name: what led there.
        """
        self._follow_as(name, value)
        while self._gone_through != (size := len(self._seen) + len(self._attributes)):
            self._gone_through = size
            for (kind, methods), under in list(self._classes.items()):
                self._under = under
                self._follow_methods(kind, methods)
        self._under = ""

    def visit_frame(self, frame: types.FrameType) -> None:
        """Follow what a function under way has in hand and names."""
        for name, value in frame.f_locals.copy().items():
            self._follow_as(name, value)
        self._follow_globals(frame.f_code, frame.f_globals)
        self.visit(None)

    def _follow(self, value: Any) -> None:
        try:
            self._look_into(value)
        except Exception:  # of an object's own (a proxy that has no class yet): it is not looked into
            return

    def _look_into(self, value: Any) -> None:
        value = behind(value)
        if len(self._seen) > _ENOUGH or isinstance(value, (str, bytes, int, float, type(None))):
            return
        if isinstance(value, torch.Tensor) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self.values.append((self._under, value))  # also keeps it alive, so that its id stays its own
        if isinstance(value, types.FunctionType):
            self._follow_function(value)
        elif isinstance(value, types.MethodType):
            self._follow(value.__func__)
            self._follow(value.__self__)
        elif isinstance(value, functools.partial):
            for item in (value.func, *value.args, *value.keywords.values()):
                self._follow(item)
        elif isinstance(value, AROUND_A_METHOD):
            inside = method_in(value)
            self._follow(inside)
            if isinstance(value, CACHED) and is_users(inside):
                self._follow(results(value, _FEW))
        elif isinstance(value, contextvars.ContextVar):
            self._place(Place(value.name, _Context(value)))
        elif isinstance(value, threading.local):
            self._follow(vars(value))  # what it is for this thread
        elif isinstance(value, type):
            self._classes.setdefault((value, ("__init__", "__call__")), self._under)
        elif isinstance(value, LISTS):
            for item in entries(value)[:_FEW]:
                self._follow(item)
        elif isinstance(value, dict):
            for _, item in pairs(value)[:_FEW]:
                self._follow(item)
        elif not isinstance(value, (types.ModuleType, numpy.ndarray, *CELLS, *GENERATORS)):
            self._follow_object(value)

    def _follow_object(self, value: Any) -> None:
        known = isinstance(value, (torch.nn.Module, torch.utils.data.Dataset))
        if not (self._libraries or known or is_data(type(value))):
            return
        if isinstance(value, torch.nn.Module):
            for name, item in list(vars(value).items()):
                if name not in BOOKKEEPING:
                    self._follow_as(self._under or name, item)
            items = list(value._modules.values())
        else:
            items = list(attributes(value).values())
        for item in items:
            if type(item) is str:
                self._texts.add(item)
            self._follow(item)
        methods = ("__call__", "__getitem__", "__getitems__", "forward")
        self._classes.setdefault((type(value), methods), self._under)

    def _follow_methods(self, kind: type, methods: tuple[str, ...]) -> None:
        """Follow the methods that calls begin with, and those that the code reached so far names."""
        overridden = self._called_by_libraries(kind, methods)
        for owner in kind.__mro__:
            if not is_users(owner):
                continue
            for name, item in list(vars(owner).items()):
                named = name in methods or name in self._attributes or name in overridden
                if not named and not self._may_be_built(name):
                    continue
                if isinstance(item, (types.FunctionType, *AROUND_A_METHOD)) and not isinstance(item, CACHED):
                    self._follow(item)
                elif not name.startswith("__"):
                    self._place(Place(name, vars(owner), owner))

    def _may_be_built(self, name: str) -> bool:
        """Whether code may come by a method by a name that it makes of text: `getattr(self, "_" + mode)`."""
        if "getattr" not in self._attributes or name.startswith("__"):
            return False
        return name in self._texts or any(name.startswith(text) or name.endswith(text) for text in self._ends)

    def _called_by_libraries(self, kind: type, methods: tuple[str, ...]) -> frozenset[str]:
        """Names by which a library's code may call what the user has put there, if any of it runs."""
        names = _of_libraries(kind)
        calls = ("__call__", "forward") if issubclass(kind, torch.nn.Module) else methods
        begins = any(_is_a_librarys(kind, name) for name in calls)
        named = self._attributes - _OF_TENSORS if issubclass(kind, torch.nn.Module) else self._attributes
        return names if begins or not names.isdisjoint(named) else frozenset()

    def _follow_function(self, function: types.FunctionType) -> None:
        if not is_users(function):
            self._follow(getattr(function, "__wrapped__", None))  # a library's decorator: `torch.no_grad()`
            return
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._place(Place(name, _Cell(name, cell)))
        self._follow_globals(code, function.__globals__)
        for module in imported_in(function):
            self._follow_module(module, code)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._follow(value)
        own = vars(function)
        if own:
            self._follow(own)
        for name in list(own):
            self._place(Place(name, own))

    def _follow_globals(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        names, every = _names(code)
        self._attributes |= every
        self._ends |= _texts(code)
        for name in sorted(names & variables.keys()):
            value = variables[name]
            if not isinstance(value, types.ModuleType):
                self._place(Place(name, variables))
            elif is_users_module(value):
                self._follow_module(value, code)
            else:
                self.modules[name] = value

    def _follow_module(self, module: types.ModuleType, code: types.CodeType) -> None:
        """Follow what code names of a user's module, and of modules in that (`package.part.function`)."""
        if (id(module), id(code)) in self._seen:
            return
        self._seen.add((id(module), id(code)))
        for attribute in sorted(names_in(code) & vars(module).keys()):
            value = vars(module)[attribute]
            self._place(Place(attribute, vars(module)))
            if isinstance(value, types.ModuleType) and is_users_module(value):
                self._follow_module(value, code)

    def _place(self, place: Place) -> None:
        if place.key in self._seen:
            return
        self._seen.add(place.key)
        self.places.append(place)
        self._follow_as(place.name, place.read())

    def _follow_as(self, name: str, value: Any) -> None:
        before, self._under = self._under, name
        self._follow(value)
        self._under = before


AROUND_A_METHOD = (
    staticmethod, classmethod, property, functools.cached_property, functools.partialmethod,
    functools.singledispatchmethod, CACHED,
)  # fmt: skip


def method_in(value: Any) -> Any:
    """The function that the entry of a class is made of."""
    for name in ("fget", "func", "__func__", "__wrapped__"):
        if hasattr(value, name):
            return getattr(value, name)
    return None


@functools.lru_cache(maxsize=4096)
def _of_libraries(kind: type) -> frozenset[str]:
    """Names of what a class has of a library's, whose code may call what the user has put in its place."""
    owners = (owner for owner in kind.__mro__ if owner not in _BASES and not is_users(owner))
    return frozenset(name for owner in owners for name in vars(owner) if not name.startswith("__"))


def _is_a_librarys(kind: type, name: str) -> bool:
    """Whether a class has this method of a library."""
    owner = next((owner for owner in kind.__mro__ if name in vars(owner)), object)
    return owner not in _BASES and not is_users(owner)


# Mostly said of a batch.
_OF_TENSORS = frozenset({"device", "dtype", "to", "type", "float", "double", "half"})
# Classes whose methods call nothing of a subclass but `forward`, or nothing while a model runs.
_BASES = (object, torch.nn.Module, torch.utils.data.Dataset)

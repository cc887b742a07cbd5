"""State reachable from a dataset, compared before and after samples are read.

It includes attributes, the variables that its functions close over and name, and everything reachable from
these: a count, a cache, a generator. The inspection calls none of the user's code. Tensors are compared by
version, arrays by bytes, all else by identity of the members; objects of libraries are traversed, but not
compared.
"""

from __future__ import annotations

import array
import collections
import functools
import gc
import io
import multiprocessing.connection
import multiprocessing.managers
import multiprocessing.queues
import queue
import random
import socket
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy
import torch
import torch.utils.data

from ronde.patching.caller import is_users, is_users_module
from ronde.rowwise.generators import GENERATORS, States

__all__ = ["DatasetSnapshot"]

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_ARRAYS = (numpy.ndarray, array.array, bytearray)
# Types whose items can be read only once.
_GIVE_ONCE = (
    *(Iterator, queue.Queue, queue.SimpleQueue, socket.socket),
    *(multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue),
    *(multiprocessing.connection._ConnectionBase, multiprocessing.managers.BaseProxy),
)
# Objects of libraries that consist of their attributes only.
_KEPT_ONLY = (torch.nn.Module, torch.utils.data.Dataset, types.SimpleNamespace)
# The default generators; their users are found by comparing states.
_OF_PROCESS: Any = (
    torch.default_generator,
    random._inst,  # pyright: ignore[reportAttributeAccessIssue]
    numpy.random.mtrand._rand,  # pyright: ignore[reportAttributeAccessIssue]
)
_HOLDS_NOTHING = (types.ModuleType, types.GetSetDescriptorType, types.MemberDescriptorType)
# Not followed: they lead to all callers.
_CODE = (types.CodeType, types.FrameType, types.TracebackType)
_MOST = 50_000
_MOST_BYTES = 1 << 26


class DatasetSnapshot:
    """Snapshot of everything reachable from a dataset.

    Attributes:
        files: the open files in it, which have a position.
        gives_once: whether it has a queue or an iterator, whose items can be read only once.
    """

    def __init__(self, dataset: Any) -> None:
        self.files: list[Any] = []
        self.gives_once = False
        # Name, function that reads the state again, and earlier state; for a mapping its entries have names.
        self._states: list[tuple[str, Callable[[], Any], Any]] = []
        generators: list[Any] = []
        seen: dict[int, Any] = {}
        self._room = _MOST_BYTES
        self._pending: collections.deque[tuple[str, Any]] = collections.deque([("", dataset)])
        # Breadth first: there may be too much to visit everything.
        while self._pending and len(seen) < _MOST:
            name, value = self._pending.popleft()
            if id(value) in seen or issubclass(type(value), (*_SIMPLE, *_HOLDS_NOTHING, *_CODE)):
                continue
            seen[id(value)] = value  # kept alive, so that the id stays unique
            if not issubclass(type(value), GENERATORS):
                with suppress(Exception):  # errors of the object's code, such as an unbound proxy
                    self._look(name, value)
            elif type(value) is not random.SystemRandom and not any(value is each for each in _OF_PROCESS):
                generators.append(value)
        self._generators = States(generators)

    def changed(self) -> str:
        """Return the name of an attribute or variable that has changed, or ""."""
        found = (_difference(name, before, look()) for name, look, before in self._states)
        return next(filter(None, found), "")

    def drew(self) -> bool:
        """Return whether a generator in it has moved."""
        return self._generators.moved()

    def _look(self, name: str, value: Any) -> None:
        kind = type(value)  # an object's own `__class__` may be wrong, or raise
        if issubclass(kind, io.IOBase):
            self.files.append(value)
        elif issubclass(kind, _GIVE_ONCE):
            self.gives_once = True
        elif issubclass(kind, torch.Tensor):
            self._compare(name, lambda: 0 if value.is_inference() else value._version)
        elif issubclass(kind, _ARRAYS):
            size = value.nbytes if issubclass(kind, numpy.ndarray) else memoryview(value).nbytes
            if size <= self._room and not _is_closed(value):
                self._room -= size
                self._compare(name, value.tobytes if hasattr(value, "tobytes") else lambda: bytes(value))
        elif issubclass(kind, _CONTAINERS):
            self._follow(name, self._compare(name, lambda: gc.get_referents(value)))
        elif issubclass(kind, types.FunctionType):
            self._follow(name, [value.__defaults__, value.__kwdefaults__, *vars(value).values()])
            if is_users(value):
                self._compare_named(_variables(value))
        elif issubclass(kind, functools._lru_cache_wrapper):
            self._follow(name, [value.__wrapped__])  # cached results are returned again
        elif kind.__module__ not in ("ctypes", "_thread") and not issubclass(kind, type):
            self._look_at_object(name, value)
        elif issubclass(kind, type) and is_users(value):
            self._compare("", functools.partial(_of_class, value))
            self._pending.extend(vars(value).items())
            self._follow(name, value.__mro__)

    def _compare(self, name: str, look: Callable[[], Any]) -> Any:
        found = look()
        self._states.append((name, look, found))
        return found

    def _compare_named(self, look: Callable[[], dict[str, Any]]) -> None:
        self._pending.extend(self._compare("", look).items())

    def _follow(self, name: str, items: Collection[Any]) -> None:
        # A list of a million numbers is not searched.
        if not set(map(type, items)).issubset(_SIMPLE):
            self._pending.extend((name, item) for item in islice(items, _MOST))

    def _look_at_object(self, name: str, value: Any) -> None:
        kind = type(value)
        own = _attributes(value)
        # Members in slots, and the class; the function of a method or a descriptor.
        beside = [each for each in gc.get_referents(value) if each is not own]
        if not (is_users(kind) or issubclass(kind, _KEPT_ONLY) or hasattr(kind, "__dataclass_fields__")):
            self._pending.extend(own.items())
            self._follow(name, beside)
            return
        self._compare_named(lambda: dict(_attributes(value)))
        if not own:  # in slots
            self._compare(name, lambda: gc.get_referents(value))
        self._follow(name, beside)


def _variables(function: types.FunctionType) -> Callable[[], dict[str, Any]]:
    """Return a function that reads a function's closure and named global variables."""
    names, variables = _names(function.__code__), function.__globals__
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    modules = [value for name in names if isinstance(value := variables.get(name), types.ModuleType)]
    spaces = [variables, *(vars(module) for module in modules if is_users_module(module))]
    named = [(space, name) for space in spaces for name in names & space.keys()]
    named = [(space, name) for space, name in named if not issubclass(type(space[name]), _HOLDS_NOTHING)]

    def look() -> dict[str, Any]:
        around = {name: _in_cell(cell) for name, cell in cells.items()}
        return {**around, **{name: space.get(name) for space, name in named}}

    return look


def _of_class(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("__")}


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's dictionary, without calling its own methods."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except Exception:  # without a dictionary, or its class hides it
        return {}
    return held if isinstance(held, dict) else {}


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Return all names that a piece of code uses, with the functions inside it."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inner)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return None


def _difference(name: str, before: Any, now: Any) -> str:
    """Return the name of the entry that has changed, or ""; lists use `name`."""
    if isinstance(before, dict):
        return next((each for each in before | now if not _same(before.get(each), now.get(each))), "")
    if isinstance(before, list):
        return "" if len(before) == len(now) and all(map(_same, before, now)) else name
    return "" if before == now else name


def _same(before: Any, now: Any) -> bool:
    """Return whether an entry is unchanged.

    A new value that is closed (see `_is_closed`) in place of None counts as unchanged.
    """
    if before is now or (before is None and _is_closed(now)):
        return True
    return issubclass(type(now), _SIMPLE) and type(before) is type(now) and bool(before == now)


def _is_closed(value: Any) -> bool:
    """Return whether a value is not compared further: files, other libraries' objects, read-only arrays."""
    if issubclass(type(value), numpy.ndarray):
        return not value.flags.writeable
    known = (*_SIMPLE, *_ARRAYS, torch.Tensor, *_CONTAINERS)
    return not issubclass(type(value), known) and not is_users(type(value))

"""What a data set holds: looked at before samples are read, and compared after it.

Its attributes, what its functions close over and name, and what these lead to: a count, a cache, a generator
of its own. Nothing of the user's is called by looking. Tensors tell by their versions, arrays by their bytes,
all else by who is in it; objects of libraries are looked through for what is in them, and not compared.
"""

from __future__ import annotations

import array
import collections
import functools
import io
import multiprocessing.connection
import multiprocessing.managers
import multiprocessing.queues
import pickle
import queue
import random
import socket
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import numpy
import torch
import torch.utils.data

from ronde.patching.caller import is_users, is_users_module

__all__ = ["Held"]

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_LISTS = (list, tuple, set, frozenset, collections.deque)
_ARRAYS = (numpy.ndarray, array.array, bytearray)
_GENERATORS = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)
# What is in these they give once.
_GIVE_ONCE = (
    *(Iterator, queue.Queue, queue.SimpleQueue, socket.socket),
    *(multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue),
    *(multiprocessing.connection._ConnectionBase, multiprocessing.managers.BaseProxy),
)
# Objects of libraries that are no more than what they keep.
_KEPT_ONLY = (torch.nn.Module, torch.utils.data.Dataset, types.SimpleNamespace)
_MOST = 50_000
_MOST_BYTES = 1 << 26


class Held:
    """All that hangs on a data set, as it is now.

    Attributes:
        files: those open among it, which are read at a place.
        gives_once: among it is what gives each thing once, a queue or an iterator: nobody gives it again.
    """

    def __init__(self, dataset: Any) -> None:
        self.files: list[Any] = []
        self.gives_once = False
        # A name, how to look again, and what was there: a mapping has names of its own.
        self._states: list[tuple[str, Callable[[], Any], Any]] = []
        self._generators: list[tuple[Any, str]] = []
        self._seen: dict[int, Any] = {}
        self._room = _MOST_BYTES
        self._pending: collections.deque[tuple[str, Any]] = collections.deque([("", dataset)])
        # What is near comes first: there may be too much to look at all of it.
        while self._pending and len(self._seen) < _MOST:
            name, value = self._pending.popleft()
            if id(value) not in self._seen and not issubclass(type(value), _SIMPLE):
                self._seen[id(value)] = value  # held, so that its id stays its own
                with suppress(Exception):  # of an object's own: a proxy, say, that stands for nothing yet
                    self._look(name, value)

    def changed(self) -> str:
        """The name of an attribute or a variable that is not as it was; empty if all are."""
        return next(
            filter(None, (_difference(name, before, look()) for name, look, before in self._states)), ""
        )

    def drew(self) -> bool:
        """Whether a generator among it has moved."""
        return any(_state(generator) != before for generator, before in self._generators)

    def _look(self, name: str, value: Any) -> None:
        kind = type(value)  # what an object says of its class may be wrong, or raise
        if issubclass(kind, _GENERATORS):
            if not _is_of_process(value):
                self._generators.append((value, _state(value)))
        elif issubclass(kind, io.IOBase):
            self.files.append(value)
        elif issubclass(kind, _GIVE_ONCE):
            self.gives_once = True
        elif issubclass(kind, torch.Tensor):
            self._compare(name, lambda: 0 if value.is_inference() else value._version)
        elif issubclass(kind, _ARRAYS):
            size = value.nbytes if issubclass(type(value), numpy.ndarray) else memoryview(value).nbytes
            if size <= self._room and not _is_closed(value):
                self._room -= size
                self._compare(name, value.tobytes if hasattr(value, "tobytes") else lambda: bytes(value))
        elif issubclass(kind, dict):
            self._compare(name, lambda: [*dict.items(value)])
            self._follow(name, [*dict.values(value)])
        elif issubclass(kind, _LISTS):
            own = next(each for each in _LISTS if issubclass(kind, each))
            self._follow(name, self._compare(name, lambda: [*own.__iter__(value)]))
        elif issubclass(kind, type):
            self._look_at_class(name, value)
        elif (inside := _inside(value)) is not None:
            self._follow(name, inside)
            if issubclass(type(value), types.FunctionType) and is_users(value):
                self._look_at_variables(value)
        elif not issubclass(kind, types.ModuleType):
            self._look_at_object(name, value)

    def _compare(self, name: str, look: Callable[[], Any]) -> Any:
        found = look()
        self._states.append((name, look, found))
        return found

    def _follow(self, name: str, items: Collection[Any]) -> None:
        # A list of a million numbers needs no walk.
        if not set(map(type, items)).issubset(_SIMPLE):
            self._pending.extend((name, item) for item in islice(items, _MOST))

    def _look_at_variables(self, function: types.FunctionType) -> None:
        """Those of functions around it, and the global ones that it names."""
        names, variables = _names(function.__code__), function.__globals__
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        modules = [value for name in names if isinstance(value := variables.get(name), types.ModuleType)]
        spaces = [variables, *(vars(module) for module in modules if is_users_module(module))]
        named = [(space, name) for space in spaces for name in names & space.keys() if _may_hold(space[name])]

        def look() -> _Named:
            around = {name: _in_cell(cell) for name, cell in cells.items()}
            return _Named({**around, **{name: space.get(name) for space, name in named}})

        self._pending.extend(self._compare("", look).items())

    def _look_at_object(self, name: str, value: Any) -> None:
        kind = type(value)
        if kind.__module__ in ("builtins", "ctypes", "_thread"):
            return
        found = _attributes(value)
        if is_users(kind) or issubclass(kind, _KEPT_ONLY) or hasattr(kind, "__dataclass_fields__"):
            self._compare(name, lambda: _attributes(value))
        self._pending.extend(found.items())
        self._pending.extend((name, owner) for owner in kind.__mro__)

    def _look_at_class(self, name: str, value: type) -> None:
        if not is_users(value):
            return
        names = [each for each in vars(value) if not each.startswith("__")]
        self._compare(name, lambda: _Named({each: vars(value).get(each) for each in names}))
        self._pending.extend((each, item) for each, item in vars(value).items() if _may_hold(item))


class _Named(dict[str, Any]):
    """What an object keeps, or variables, by names that a reader would look for."""


def _may_hold(value: Any) -> bool:
    return not issubclass(
        type(value), (types.ModuleType, types.GetSetDescriptorType, types.MemberDescriptorType)
    )


def _attributes(value: Any) -> _Named:
    """What an object keeps, in its dictionary or its slots; none of its own methods is asked."""
    found: dict[str, Any] = {}
    for owner in type(value).__mro__:
        for name, slot in vars(owner).items():
            if isinstance(slot, types.MemberDescriptorType) and owner.__module__ != "builtins":
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # nothing has been put there yet
                    continue
    try:
        held = object.__getattribute__(value, "__dict__")
    except Exception:  # it has none, or its class hides it
        held = {}
    return _Named({**found, **held} if isinstance(held, dict) else found)


def _inside(value: Any) -> list[Any] | None:
    """What a function, or something around one, is made of; None for what is none."""
    if issubclass(type(value), types.FunctionType):
        own = vars(value).values()
        return [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *own]
    if issubclass(type(value), types.MethodType):
        return [value.__func__, value.__self__]
    if issubclass(type(value), types.BuiltinMethodType):
        return [] if isinstance(value.__self__, types.ModuleType) else [value.__self__]
    if issubclass(type(value), functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if issubclass(type(value), (staticmethod, classmethod, functools._lru_cache_wrapper)):
        return [value.__wrapped__]
    if issubclass(type(value), property):
        return [value.fget]
    if issubclass(type(value), functools.cached_property):
        return [value.func]
    return None


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """All names that a piece of code uses, with the functions inside it."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inner)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been put there yet
        return None


def _is_of_process(generator: Any) -> bool:
    """Whether everything draws from it that has none of its own; who does is found by its state."""
    pythons: Any = random.random
    numpys: Any = numpy.random.mtrand._rand  # pyright: ignore[reportAttributeAccessIssue]
    return any(generator is each for each in (torch.default_generator, pythons.__self__, numpys))


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    numpys = isinstance(generator, numpy.random.RandomState)
    return pickle.dumps(generator.get_state() if numpys else generator.bit_generator.state)


def _difference(name: str, before: Any, now: Any) -> str:
    """The name of what has changed, that of an attribute or its own; empty if nothing has."""
    if isinstance(before, _Named):
        names = chain(before, now.keys() - before.keys())
        return next((each for each in names if not _same(before.get(each), now.get(each))), "")
    if isinstance(before, list):
        return "" if len(before) == len(now) and all(map(_same_entry, before, now)) else name
    return "" if before == now else name


def _same_entry(before: Any, now: Any) -> bool:
    if (
        isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now) == 2
    ):  # a dictionary's
        return all(map(_same, before, now))
    return _same(before, now)


def _same(before: Any, now: Any) -> bool:
    """Whether an entry is what it was, or was nothing and is now something that is not looked into."""
    if before is now or (before is None and _is_closed(now)):
        return True
    return issubclass(type(now), _SIMPLE) and type(before) is type(now) and bool(before == now)


def _is_closed(value: Any) -> bool:
    """An open file, a table that was read, an array that cannot be written to."""
    if issubclass(type(value), numpy.ndarray):
        return not value.flags.writeable
    known = (*_SIMPLE, *_ARRAYS, torch.Tensor, dict, *_LISTS)
    return not issubclass(type(value), known) and not is_users(type(value))

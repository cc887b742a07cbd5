"""What is the user's around a model: what of it changes while the model is tried is seen, and put back.

`Reach` reads in a model's code what it names. Code comes by things in other ways, too: by a name made of text
(`getattr(self, "_" + mode)`), a closure over the model itself, the methods of operators and of `with`, a
global variable that is not there yet. So all is gone through that the user's functions, classes and modules
of Python lead to. What functions under way have in hand is not asked for: Python, before 3.13, would keep it.
"""

from __future__ import annotations

import collections
import functools
import pickle
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from ronde.boundary.blind_hooks import blind_hooks
from ronde.boundary.kept import Surroundings, generator_state, picture, way_back
from ronde.boundary.members import (
    CELLS,
    LISTS,
    attributes,
    cells,
    entries,
    holds_numbers,
    in_cell,
    pairs,
)
from ronde.boundary.other_threads import others_run
from ronde.boundary.reach import (
    AROUND_A_METHOD,
    BOOKKEEPING,
    GENERATORS,
    SIMPLE,
    is_data,
    is_users,
    is_users_module,
    method_in,
)
from ronde.boundary.weak_references import behind

__all__ = ["Belongings"]

# So many objects are gone through, the nearest first, and so many of the entries of one. Of containers with
# more, a vocabulary say, the entries are only counted, and arrays of more bytes are not looked at.
_MOST = 10_000
_MANY = 256
_SMALL = 1 << 16


class Belongings:
    """What a module and the user's code around it lead to, as it is now.

    What other threads may change is theirs: where there are any, nothing is looked at.

    Args:
        given: what the module is called with, functions and objects among it.
        surroundings: what is looked after already.
    """

    def __init__(self, module: torch.nn.Module, given: list[Any], surroundings: Surroundings) -> None:
        self._held: list[_Held] = []
        alike = collections.Counter[str]()
        for name, value in () if others_run() else _gone_through(module, given):
            if surroundings.knows(value) or (read := _reader(value)) is None:
                continue
            alike[name] += 1
            number = alike[name]
            self._held.append(_Held(f"{name} ({number})" if number > 1 else name, value, read))

    def changes(self) -> dict[str, Any]:
        """Pictures of what has changed, by what a reader would look for."""
        found: dict[str, Any] = {}
        for held in self._held:
            if held.moved():
                found.update(held.changes())
        return found

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Whatever happens inside, all of it is afterwards as it was."""
        try:
            yield
        finally:
            for held in self._held:
                if held.moved():
                    held.put_back()


class _Held:
    """An object that may change, and what is in it.

    Args:
        read: gives that: a mapping, items, or the bytes of numbers.
    """

    __slots__ = ("_before", "_ids", "_name", "_put_back", "_read", "_value")

    def __init__(self, name: str, value: Any, read: Callable[[], _Contents]) -> None:
        self._name, self._value, self._read = name, value, read
        held = read()
        self._before, self._ids = _copied(held), _ids(held)
        self._put_back = _way_back(value)

    def moved(self) -> bool:
        """Whether something else may be in it; asked of thousands of objects, so by identity alone."""
        return _ids(self._read()) != self._ids

    def changes(self) -> dict[str, Any]:
        now, before = self._read(), self._before
        if isinstance(now, Mapping) and isinstance(before, Mapping):
            changed = [key for key in {**before, **now} if not _is_same(before.get(key), now.get(key))]
            return {self._named(key): picture(now.get(key)) for key in changed}
        if len(now) == len(before) and all(map(_is_same, now, before)):
            return {}
        return {f"what the variable {self._name} holds": picture(self._value)}

    def _named(self, key: Any) -> str:
        if isinstance(self._value, types.CellType):
            return f"the variable {self._name}"
        if _is_namespace(self._value):
            return f"the variable {key}"
        return f"what the variable {self._name} holds ({key})"

    def put_back(self) -> None:
        self._put_back()


_Contents = Mapping[Any, Any] | Collection[Any] | bytes


def _ids(held: _Contents) -> Any:
    if isinstance(held, bytes):
        return held
    if len(held) > _SMALL:
        return len(held)
    if isinstance(held, Mapping):
        return [*map(id, held), *map(id, held.values())]
    return [*map(id, held)]


def _copied(held: _Contents) -> _Contents:
    if isinstance(held, bytes):
        return held
    return dict(held) if isinstance(held, Mapping) else list(held)


def _gone_through(module: torch.nn.Module, given: list[Any]) -> Iterator[tuple[str, Any]]:
    """Every object that is come by, each once, with the name of the variable that led there."""
    waiting = collections.deque[tuple[str, Any]]([(type(module).__name__, module)])
    waiting += [("an argument", each) for each in given]
    kept: dict[int, Any] = {}  # alive, so that ids stay their own
    while waiting and len(kept) < _MOST:
        name, value = waiting.popleft()
        value = behind(value)
        if id(value) in kept or issubclass(type(value), (*SIMPLE, torch.Tensor)):
            continue
        kept[id(value)] = value
        try:
            inside = _inside(value)
        except Exception:  # of an object's own
            continue
        yield name, value
        waiting += [(key or name, each) for key, each in inside]


def _inside(value: Any) -> list[tuple[str, Any]]:
    """What an object leads to, of which global variables and those of functions have names of their own."""
    if isinstance(value, types.ModuleType):
        return [("", vars(value))] if is_users_module(value) else []
    if isinstance(value, type):
        own = vars(value).items() if is_users(value) else ()
        return [("", each) for name, each in own if name not in _OF_CLASSES]
    if isinstance(value, types.FunctionType):
        return _inside_function(value)
    if isinstance(value, types.CellType):
        return [("", each) for each in _in_cell(value).values()]
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        return [("", value.__self__), ("", getattr(value, "__func__", None))]
    if isinstance(value, functools.partial):
        return [("", each) for each in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, AROUND_A_METHOD):
        return [("", method_in(value))]
    if _is_namespace(value):
        return [(name, each) for name, each in value.items() if not name.startswith("__")]
    if isinstance(value, dict):
        return [("", each) for _, each in pairs(value)[:_MANY]]
    if isinstance(value, LISTS):
        return [("", each) for each in entries(value)[:_MANY]]
    if isinstance(value, torch.nn.Module):
        own = [each for name, each in vars(value).items() if name not in BOOKKEEPING]
        inside = (type(value), value._buffers, *value._modules.values(), *blind_hooks(value), *own)
        return [("", each) for each in inside]
    if is_data(type(value)):
        return [("", type(value)), *(("", each) for each in attributes(value).values())]
    return []


# What Python and dataclasses note of a class.
_OF_CLASSES = {"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__weakref__"}


def _inside_function(function: types.FunctionType) -> list[tuple[str, Any]]:
    if not is_users(function):
        return [("", getattr(function, "__wrapped__", None))]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    others = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return [*cells, *(("", each) for each in (*others, vars(function), function.__globals__))]


def _is_namespace(value: Any) -> bool:
    """Whether it holds the global variables of a module, or of a script that is none."""
    return type(value) is dict and "__builtins__" in value and "__name__" in value


def _in_cell(cell: types.CellType) -> dict[str, Any]:
    held = in_cell(cell, _NOTHING)
    return {} if held is _NOTHING else {"": held}


_NOTHING = object()


def _reader(value: Any) -> Callable[[], _Contents] | None:
    """What reads what is in an object; None where nothing of it can change, or is not looked at."""
    if isinstance(value, type):
        return functools.partial(vars, value) if is_users(value) else None
    if isinstance(value, types.CellType):
        return lambda: _in_cell(value)
    if isinstance(value, dict):
        return (lambda: value) if type(value) is dict else lambda: dict(pairs(value))
    if isinstance(value, (list, set, collections.deque)):
        return (lambda: value) if type(value) in _PYTHONS else lambda: entries(value)
    if isinstance(value, numpy.ndarray):
        return value.tobytes if value.nbytes <= _SMALL and value.dtype != object else None
    if isinstance(value, CELLS):
        small = holds_numbers(value) and memoryview(value).nbytes <= _SMALL
        return (lambda: cells(value)) if small else None
    if isinstance(value, GENERATORS):
        return lambda: _state_of(value)
    if isinstance(value, torch.nn.Module) or is_data(type(value)):
        return lambda: attributes(value)
    return None


def _state_of(generator: Any) -> bytes:
    state = generator_state(generator)
    return bytes(state.numpy()) if isinstance(state, torch.Tensor) else pickle.dumps(state)


_PYTHONS = (list, set, collections.deque)


def _is_same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and issubclass(type(a), SIMPLE) and a == b)


def _way_back(value: Any) -> Callable[[], None]:
    """What puts back what is in an object now."""
    if isinstance(value, type):
        return functools.partial(_put_class_back, value, dict(vars(value)))
    if isinstance(value, types.CellType):
        return functools.partial(_put_cell_back, value, _in_cell(value))
    return way_back(value) or _stay


def _stay() -> None:
    """There is no way back."""


def _put_class_back(kind: type, before: dict[str, Any]) -> None:
    now = dict(vars(kind))
    for name in now.keys() - before.keys():
        type.__delattr__(kind, name)
    for name, value in before.items():
        if now.get(name) is not value:
            type.__setattr__(kind, name, value)


def _put_cell_back(cell: types.CellType, before: dict[str, Any]) -> None:
    if before:
        cell.cell_contents = before[""]
    elif _in_cell(cell):
        del cell.cell_contents

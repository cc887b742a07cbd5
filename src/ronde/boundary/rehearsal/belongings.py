"""What is the user's around a model: what of it changes while the model is tried is seen, and put back.

`Reach` reads in a model's code what it names. Code comes by things in other ways, too: by a name made of text
(`getattr(self, "_" + mode)`), a closure over the model itself, the methods of operators and of `with`, a
global variable that is not there yet. So all is gone through that the user's functions, classes and modules
of Python lead to. What functions under way have in hand is not asked for: Python, before 3.13, would keep it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
import pickle
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from ronde.boundary.blind_hooks import blind_hooks
from ronde.boundary.kept import Surroundings, generator_state, picture
from ronde.boundary.members import (
    CELLS,
    LISTS,
    attributes,
    cells,
    copied,
    dictionary,
    entries,
    holds_numbers,
    in_cell,
    pairs,
    slots,
)
from ronde.boundary.reach import (
    AROUND_A_METHOD,
    BOOKKEEPING,
    GENERATORS,
    SIMPLE,
    imported_in,
    is_data,
    is_users,
    is_users_module,
    method_in,
)
from ronde.boundary.ways_back import way_back
from ronde.boundary.weak_references import WEAK, behind
from ronde.patching.other_threads import others_run

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
        # The dictionaries of functions, mostly: asked all at once.
        self._empty: list[Any] = []
        self._names_of_empty: list[str] = []
        alike: dict[str, int] = {}
        for name, value in () if others_run() else _gone_through(module, given):
            reader = _reader(type(value))
            if reader is None or surroundings.knows(value) or (read := reader(value)) is None:
                continue
            alike[name] = number = alike.get(name, 0) + 1
            named = f"{name} ({number})" if number > 1 else name
            if type(value) in _PYTHONS and not value:
                self._empty.append(value)
                self._names_of_empty.append(named)
            else:
                self._held.append(_Held(named, value, read))

    @contextmanager
    def restored(self) -> Iterator[dict[str, Any]]:
        """Whatever happens inside, all of it is afterwards as it was.

        Yields:
            to be filled at the end with pictures of what has changed, by what a reader would look for.
        """
        found: dict[str, Any] = {}
        moved: list[_Held | _Empty] = []
        try:
            yield found
        finally:
            moved += [held for held in self._held if held.moved()]
            if any(self._empty):
                named = zip(self._names_of_empty, self._empty, strict=True)
                moved += [_Empty(name, value) for name, value in named if value]
            try:
                for held in moved:
                    found.update(held.changes())
            finally:
                for held in moved:
                    held.put_back()


class _Held:
    """An object that may change, and what is in it.

    Whether something else is in it is asked of hundreds of objects at every run, so by identity alone.

    Args:
        read: gives what is in it.
    """

    __slots__ = ("_before", "_keys", "_name", "_put_back", "_read", "_value")

    def __init__(self, name: str, value: Any, read: _Read) -> None:
        self._name, self._value, self._read = name, value, read
        held = read()
        self._keys = [*held] if _is_keyed(held) else None
        self._before = _in_order(held)
        self._put_back = _way_back(value)

    def moved(self) -> bool:
        """Whether something else may be in it."""
        held, before = self._read(), self._before
        if type(held) is bytes:
            return held != before
        if len(held) != len(before):
            return True
        if self._keys is None:
            return not all(map(operator.is_, held, before))
        return not all(map(operator.is_, held.values(), before)) or [*held] != self._keys

    def changes(self) -> dict[str, Any]:
        held, before = self._read(), self._before
        if self._keys is not None:
            known = dict(zip(self._keys, before, strict=True))
            return _changed_entries(self._name, self._value, known, held)
        if type(held) is not bytes and len(held) == len(before) and all(map(_is_same, held, before)):
            return {}
        return {f"what the variable {self._name} holds": picture(self._value)}

    def put_back(self) -> None:
        self._put_back()


@dataclasses.dataclass(frozen=True, slots=True)
class _Empty:
    """A container of Python's that had nothing in it."""

    name: str
    value: Any

    def changes(self) -> dict[str, Any]:
        if isinstance(self.value, dict):
            return _changed_entries(self.name, self.value, {}, self.value)
        return {f"what the variable {self.name} holds": picture(self.value)}

    def put_back(self) -> None:
        self.value.clear()


# What is in an object: entries, items, or the bytes of numbers.
_Read = Callable[[], Any]


def _is_keyed(held: Any) -> bool:
    return isinstance(held, (dict, types.MappingProxyType))


def _in_order(held: Any) -> Any:
    """Bytes as they are."""
    if type(held) is bytes:
        return held
    return [*held.values()] if _is_keyed(held) else [*held]


def _changed_entries(
    name: str, owner: Any, before: Mapping[Any, Any], now: Mapping[Any, Any]
) -> dict[str, Any]:
    changed = [key for key in {**before, **now} if not _is_same(before.get(key), now.get(key))]
    return {_named(name, owner, key): picture(now.get(key)) for key in changed}


def _named(name: str, owner: Any, key: Any) -> str:
    if isinstance(owner, types.CellType):
        return f"the variable {name}"
    return f"the variable {key}" if _is_namespace(owner) else f"what the variable {name} holds ({key})"


def _gone_through(module: torch.nn.Module, given: list[Any]) -> Iterator[tuple[str, Any]]:
    """Every object that is come by, each once, with the name of the variable that led there."""
    waiting = collections.deque[tuple[str, Any]]([(type(module).__name__, module)])
    waiting.extend(("an argument", each) for each in given)
    kept: dict[int, Any] = {}  # alive, so that ids stay their own
    while waiting and len(kept) < _MOST:
        name, value = waiting.popleft()
        if issubclass(type(value), WEAK):
            value = behind(value)
        inside = _opener(type(value))
        if inside is None or id(value) in kept:
            continue
        kept[id(value)] = value
        try:
            named, others = inside(value)
        except Exception:  # of an object's own
            continue
        yield name, value
        waiting.extend(named)
        waiting.extend(zip(itertools.repeat(name), others))


# What an object leads to: variables with names of their own, and all else.
_Found = tuple[Iterable[tuple[str, Any]], Iterable[Any]]


def _in_python_module(value: types.ModuleType) -> _Found:
    return (), ([vars(value)] if is_users_module(value) else ())


def _in_class(value: type) -> _Found:
    own = vars(value).items() if is_users(value) else ()
    return (), [each for name, each in own if name not in _OF_CLASSES]


# What Python and dataclasses note of a class.
_OF_CLASSES = {"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__weakref__"}


def _in_function(function: types.FunctionType) -> _Found:
    if not is_users(function):
        return (), [getattr(function, "__wrapped__", None)]
    variables = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return variables, (*given, vars(function), function.__globals__, *imported_in(function))


def _in_variable(cell: types.CellType) -> _Found:
    return (), _in_cell(cell).values()


def _in_method(method: Any) -> _Found:
    return (), (method.__self__, getattr(method, "__func__", None))


def _in_partial(value: functools.partial[Any]) -> _Found:
    return (), (value.func, *value.args, *value.keywords.values())


def _in_wrapper(value: Any) -> _Found:
    return (), [method_in(value)]


def _in_dict(value: dict[Any, Any]) -> _Found:
    if _is_namespace(value):
        return [(name, each) for name, each in value.items() if not name.startswith("__")], ()
    return (), [each for _, each in pairs(value)[:_MANY]]


def _in_items(value: Any) -> _Found:
    return (), entries(value)[:_MANY]


def _is_namespace(value: Any) -> bool:
    """Whether it holds the global variables of a module, or of a script that is none."""
    return type(value) is dict and "__builtins__" in value and "__name__" in value


def _in_module(value: torch.nn.Module) -> _Found:
    own = [each for name, each in vars(value).items() if name not in BOOKKEEPING]
    return (), (type(value), value._buffers, *value._modules.values(), *blind_hooks(value), *own)


def _in_object(value: Any) -> _Found:
    return (), (type(value), *attributes(value).values())


def _in_nothing(value: Any) -> _Found:
    return (), ()


# The first that fits.
_OPENERS: tuple[tuple[Any, Callable[[Any], _Found]], ...] = (
    (types.ModuleType, _in_python_module),
    (type, _in_class),
    (types.FunctionType, _in_function),
    (types.CellType, _in_variable),
    ((types.MethodType, types.BuiltinMethodType), _in_method),
    (functools.partial, _in_partial),
    (AROUND_A_METHOD, _in_wrapper),
    (dict, _in_dict),
    (LISTS, _in_items),
    (torch.nn.Module, _in_module),
)


@functools.lru_cache(maxsize=4096)
def _opener(kind: type) -> Callable[[Any], _Found] | None:
    """What gives what objects of this type lead to; None for what holds nothing else."""
    if issubclass(kind, (*SIMPLE, torch.Tensor)):
        return None
    found = next((opener for kinds, opener in _OPENERS if issubclass(kind, kinds)), None)
    return found or (_in_object if is_data(kind) else _in_nothing)


def _in_cell(cell: types.CellType) -> dict[str, Any]:
    held = in_cell(cell, _NOTHING)
    return {} if held is _NOTHING else {"": held}


_NOTHING = object()


def _read_class(value: type) -> _Read | None:
    return functools.partial(vars, value) if is_users(value) else None


def _read_dict(value: dict[Any, Any]) -> _Read:
    if len(value) > _SMALL:
        return functools.partial(_counted, value)
    return (lambda: value) if type(value) is dict else functools.partial(copied, value)


def _read_items(value: Any) -> _Read:
    if len(value) > _SMALL:
        return functools.partial(_counted, value)
    return (lambda: value) if type(value) in _PYTHONS else functools.partial(entries, value)


_PYTHONS = (dict, list, set, collections.deque)


def _counted(value: Any) -> bytes:
    return str(len(value)).encode()


def _read_array(value: Any) -> _Read | None:
    return value.tobytes if value.nbytes <= _SMALL and value.dtype != object else None


def _read_cells(value: Any) -> _Read | None:
    small = holds_numbers(value) and memoryview(value).nbytes <= _SMALL
    return (lambda: cells(value)) if small else None


def _read_generator(generator: Any) -> _Read:
    def state() -> bytes:
        state = generator_state(generator)
        return bytes(state.numpy()) if isinstance(state, torch.Tensor) else pickle.dumps(state)

    return state


def _read_object(value: Any) -> _Read:
    if slots(type(value)) or dictionary(value) is None:
        return functools.partial(attributes, value)
    return functools.partial(object.__getattribute__, value, "__dict__")


# The first that fits.
_READERS: tuple[tuple[Any, Callable[[Any], _Read | None]], ...] = (
    (type, _read_class),
    (types.CellType, lambda value: functools.partial(_in_cell, value)),
    (dict, _read_dict),
    ((list, set, collections.deque), _read_items),
    (numpy.ndarray, _read_array),
    (CELLS, _read_cells),
    (GENERATORS, _read_generator),
    (torch.nn.Module, _read_object),
)


@functools.lru_cache(maxsize=4096)
def _reader(kind: type) -> Callable[[Any], _Read | None] | None:
    """What gives what reads objects of this type; None where nothing of them can change, or is looked at."""
    found = next((reader for kinds, reader in _READERS if issubclass(kind, kinds)), None)
    return found or (_read_object if is_data(kind) else None)


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

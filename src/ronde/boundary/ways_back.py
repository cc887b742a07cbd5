"""How what objects hold is put back: the way back is found before something happens, and taken after it.

Only what has changed is written, as another thread may be reading.
"""

from __future__ import annotations

import array
import collections
import copy
import ctypes
import functools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from ronde.boundary.cached_functions import CACHED, emptied_back
from ronde.boundary.members import (
    CELLS,
    attributes,
    cells,
    copied,
    dict_kind,
    dictionary,
    entries,
    holds_numbers,
    slots,
)
from ronde.boundary.reach import GENERATORS, Place

__all__ = ["LARGEST", "books", "restored", "way_back", "ways_back"]

# Memory of more bytes is not copied.
LARGEST = 1 << 26
_Back = Callable[[], None]


@contextmanager
def restored(places: Iterable[Place], values: Iterable[Any]) -> Iterator[None]:
    """Whatever happens inside, variables and the contents of objects are afterwards as they were."""
    back = ways_back(places, values)
    try:
        yield
    finally:
        back()


def ways_back(places: Iterable[Place], values: Iterable[Any]) -> _Back:
    """What puts variables and the contents of objects back as they are now."""
    variables = [(place, place.read()) for place in places]
    ways = [way for value in values if (way := way_back(value)) is not None]

    def back() -> None:
        failures: list[Exception] = []
        for way in ways:
            try:
                way()
            except Exception as error:  # the others are put back all the same
                failures.append(error)
        for place, before in variables:
            if place.read() is not before:
                place.write(before)
        if failures:
            raise failures[0]

    return back


def way_back(value: Any) -> _Back | None:
    """What puts an object's contents back as they are now, without a word to its class."""
    return _way_of(type(value))(value)


@functools.lru_cache(maxsize=4096)
def _way_of(kind: type) -> Callable[[Any], _Back | None]:
    return next((way for kinds, way in _WAYS if issubclass(kind, kinds)), _attributes_back)


def _optimizer_back(value: torch.optim.Optimizer) -> _Back:
    return _each_back([_dict_back(book) for book in books(value)])


def _array_back(value: Any) -> _Back | None:
    if value.nbytes > LARGEST or not value.flags.writeable:
        return None
    numbers = value.copy()
    return lambda: value.__setitem__(Ellipsis, numbers)


def _module_back(value: torch.nn.Module) -> _Back | None:
    buffers = vars(value).get("_buffers")
    if not isinstance(buffers, dict):
        return _attributes_back(value)
    return _each_back([_dict_back(vars(value)), _dict_back(buffers)])


def books(held: Any) -> Iterator[dict[Any, Any]]:
    """What a copy of a module shares with it and may write to: the settings and entries of its optimizers."""
    if not isinstance(held, torch.optim.Optimizer):
        return
    own = attributes(held)
    yield from (book for book in (own, *own.get("param_groups", ())) if isinstance(book, dict))
    state = own.get("state")
    if isinstance(state, dict):  # where ranks hold parts of it, it is none
        yield state
        yield from (entry for entry in state.values() if isinstance(entry, dict))


def _each_back(ways: list[_Back]) -> _Back:
    def back() -> None:
        for way in ways:
            way()

    return back


def _cells_back(value: Any) -> _Back | None:
    if not (holds_numbers(value) and memoryview(value).nbytes <= LARGEST):
        return None
    before = cells(value)

    def back() -> None:
        now = cells(value)
        if isinstance(value, (array.array, bytearray)):
            if len(now) == len(before):  # whoever else looks at its memory may go on
                memoryview(value).cast("B")[:] = before
            elif isinstance(value, bytearray):
                value[:] = before
            else:
                del value[:]
                value.frombytes(before)
        elif now != before:
            ctypes.memmove(ctypes.addressof(value), before, len(before))

    return back


def _write_list(value: list[Any], items: list[Any]) -> None:
    list.__setitem__(value, slice(None), items)


def _write_set(value: set[Any], items: list[Any]) -> None:
    set.clear(value)
    set.update(value, items)


def _write_deque(value: collections.deque[Any], items: list[Any]) -> None:
    collections.deque.clear(value)
    collections.deque.extend(value, items)


def _items_back(write: Callable[[Any, list[Any]], None]) -> Callable[[Any], _Back]:
    def way(value: Any) -> _Back:
        items = entries(value)
        return lambda: None if _identical(entries(value), items) else write(value, items)

    return way


def _attributes_back(value: Any) -> _Back | None:
    places, held = slots(type(value)), dictionary(value)
    own = None if held is None else _dict_back(held)
    if not places:
        return own
    before = attributes(value)

    def back() -> None:
        now = attributes(value)
        for name, slot in places.items():
            if name in before:
                slot.__set__(value, before[name])  # as a class that forbids it does itself
            elif name in now:
                slot.__delete__(value)
        if own is not None:
            own()

    return back


def _dict_back(value: dict[Any, Any]) -> _Back:
    before, kind = copied(value), dict_kind(value)

    def back() -> None:
        """Only what has changed: another thread may be reading."""
        now = copied(value)
        for key in now.keys() - before.keys():
            kind.__delitem__(value, key)
        for key, item in before.items():
            if key not in now or now[key] is not item:
                kind.__setitem__(value, key, item)

    return back


def _identical(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _generator_back(value: Any) -> _Back:
    if isinstance(value, random.Random):
        python = value.getstate()
        return lambda: value.setstate(python)
    if isinstance(value, numpy.random.Generator):
        bits = copy.deepcopy(value.bit_generator.state)
        return lambda: setattr(value.bit_generator, "state", bits)
    state = value.get_state()
    return lambda: value.set_state(state) and None


# The first that fits; of other objects their attributes are put back.
_WAYS: tuple[tuple[Any, Callable[[Any], _Back | None]], ...] = (
    (GENERATORS, _generator_back),
    (CELLS, _cells_back),
    (dict, _dict_back),
    (CACHED, emptied_back),
    (torch.optim.Optimizer, _optimizer_back),
    (list, _items_back(_write_list)),
    (set, _items_back(_write_set)),
    (collections.deque, _items_back(_write_deque)),
    (numpy.ndarray, _array_back),
    (torch.nn.Module, _module_back),
)

"""What an object and the variables that its code names hold, looked at before and after something ran.

For code that runs on a part of the batch on each rank, and may keep a book of what it did: a count, a
cache, a list. Nothing of the user's is called or changed by looking. Tensors tell by their versions, arrays
by their bytes, all else by who is in it; objects of libraries, an open file say, are not looked into.
"""

from __future__ import annotations

import array
import collections
import types
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import numpy
import torch
import torch.utils.data

from ronde.boundary.members import LISTS, attributes, cells, copied, entries
from ronde.boundary.reach import SIMPLE, Reach, is_data
from ronde.boundary.weak_references import behind

__all__ = ["Holdings"]

_CONTAINERS = (dict, *LISTS)
_ARRAYS = (numpy.ndarray, array.array, bytearray)
_KNOWN = (torch.nn.Module, torch.utils.data.Dataset, types.FunctionType)
_ENOUGH = 100_000
_MOST_BYTES = 1 << 26
_ABSENT = object()


class Holdings:
    """All that hangs on an object, and on the variables that its code names, as it is now."""

    def __init__(self, root: Any) -> None:
        reach = Reach()
        reach.visit(root)
        self._variables = [(place, place.read()) for place in reach.places]
        self._held: list[tuple[str, Any, Any]] = []
        self._seen: set[int] = set()
        self._look([("", root), *((place.name, value) for place, value in self._variables)])
        # Nothing leads there by a name: what is a default of a function, say.
        self._look((name or f"a {type(value).__name__}", value) for name, value in reach.values)

    def changed(self) -> str:
        """The name of an attribute or a variable that is not as it was; empty if all are."""
        variables = (place.name for place, before in self._variables if not _same(before, place.read()))
        return next(filter(None, chain(variables, (_difference(*each) for each in self._held))), "")

    def _look(self, found: Iterable[tuple[str, Any]]) -> None:
        """What is near comes first: there may be too much to look at all of it."""
        pending, room = collections.deque(found), _MOST_BYTES
        while pending and len(self._held) < _ENOUGH:
            name, value = pending.popleft()
            value = behind(value)
            if id(value) in self._seen or issubclass(type(value), SIMPLE):
                continue
            self._seen.add(id(value))
            if issubclass(type(value), _ARRAYS) and _size(value) > room:
                continue
            state = _state(value)
            if state is None:
                continue
            room -= len(state) if isinstance(state, bytes) else 0
            inside = _inside(name, state)
            if inside or not issubclass(type(value), tuple):
                self._held.append((name, value, state))
                pending.extend(inside)


def _state(value: Any) -> Any:
    """What can be compared later with what `value` holds then; None for what is not looked into."""
    kind = type(value)  # what an object says of its class may be wrong, or raise
    if issubclass(kind, torch.Tensor):
        return None if value.is_inference() else value._version
    if issubclass(kind, numpy.ndarray):
        return numpy.ndarray.tobytes(value) if value.flags.writeable else None
    if issubclass(kind, _ARRAYS):
        return cells(value)
    if issubclass(kind, _CONTAINERS):
        return copied(value) if issubclass(kind, dict) else entries(value)
    if issubclass(kind, _KNOWN) or is_data(kind):
        return None if issubclass(kind, type) else _Attributes(attributes(value))
    return None


def _size(value: Any) -> int:
    return value.nbytes if isinstance(value, numpy.ndarray) else memoryview(value).nbytes


class _Attributes(dict[str, Any]):
    """What an object keeps, by names that a reader would look for."""


def _inside(name: str, state: Any) -> list[tuple[str, Any]]:
    """What to look at next, with its name: that of the attribute or the variable in which it is."""
    if isinstance(state, _Attributes):
        return list(state.items())
    items = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    # A list of a million numbers needs no walk.
    if not set(map(type, items)).difference(SIMPLE):
        return []
    return [(name, item) for item in islice(items, _ENOUGH)]


def _difference(name: str, value: Any, before: Any) -> str:
    """The name of what has changed in `value`, that of its attribute or its own; empty if nothing has."""
    now = _state(value)
    if isinstance(before, dict):
        keys = chain(before, now.keys() - before.keys())
        pairs = ((key, before.get(key, _ABSENT), now.get(key, _ABSENT)) for key in keys)
        changed = [key for key, then, entry in pairs if not _same(then, entry)]
        return "" if not changed else changed[0] if isinstance(before, _Attributes) else name
    if isinstance(before, list):
        return "" if len(before) == len(now) and all(map(_same, before, now)) else name
    return "" if before == now else name


def _same(before: Any, now: Any) -> bool:
    """Whether an entry is what it was, or was nothing and is now something that is not looked into."""
    if before is now or ((before is None or before is _ABSENT) and _is_closed(now)):
        return True
    return issubclass(type(now), SIMPLE) and type(before) is type(now) and _equal(before, now)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # of a class that compares in a way of its own
        return False


def _is_closed(value: Any) -> bool:
    if issubclass(type(value), numpy.ndarray) and not value.flags.writeable:
        return True  # a file that was mapped when a sample of it was first asked for
    known = issubclass(type(value), (*SIMPLE, *_ARRAYS, torch.Tensor))
    return not known and value is not _ABSENT and _state(value) is None

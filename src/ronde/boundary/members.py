"""What an object holds, asked of Python itself: nothing of the object's own class is called.

A class may count how often it is asked, fetch what it has not yet, or raise: a tuple whose `__len__` is not
to be used, a list that is read from a file. So containers are gone through by the methods of the Python class
that they are made of, and attributes are read where Python keeps them.
"""

from __future__ import annotations

import array
import collections
import ctypes
import functools
import types
from collections.abc import Mapping
from typing import Any

__all__ = [
    "CELLS",
    "LISTS",
    "attributes",
    "cells",
    "copied",
    "dict_kind",
    "dictionary",
    "entries",
    "holds_numbers",
    "in_cell",
    "pairs",
    "slots",
]

# What holds items without names.
LISTS = (list, tuple, set, frozenset, collections.deque)
_CTYPES: tuple[type, ...] = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
# What is memory of its own, and no array of NumPy.
CELLS: tuple[type, ...] = (array.array, bytearray, *_CTYPES)
_Slot = types.MemberDescriptorType


def entries(value: Any) -> list[Any]:
    """The items of one of `LISTS`."""
    return [*_kind(type(value)).__iter__(value)]


def holds_numbers(value: Any) -> bool:
    """Whether what is in one of `CELLS` is its own, to be put back.

    A pointer may lead to what is gone, and memory that was made elsewhere may be shared with other processes.
    """
    return not issubclass(type(value), _CTYPES) or (value._b_needsfree_ and not _points(type(value)))


@functools.lru_cache(maxsize=4096)
def _points(kind: Any) -> bool:
    if issubclass(kind, ctypes._SimpleCData):
        return vars(kind).get("_type_", "P") in "zZPO"
    if issubclass(kind, ctypes.Array):
        return _points(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        owners = (owner for owner in kind.__mro__ if "_fields_" in vars(owner))
        return any(_points(field[1]) for owner in owners for field in owner._fields_)
    return True


def cells(value: Any) -> bytes:
    """What is in one of `CELLS`."""
    return memoryview(value).tobytes()


def in_cell(cell: types.CellType, missing: Any = None) -> Any:
    """What a variable of an enclosing function holds; `missing` where nothing has been put there yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return missing


def pairs(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The keys of a dict, each with its entry."""
    return [*dict_kind(value).items(value)]


def copied(value: dict[Any, Any]) -> dict[Any, Any]:
    """A plain dict of the same entries."""
    return dict(value) if type(value) is dict else dict(dict_kind(value).items(value))


def dict_kind(value: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The class of Python's that knows the order of this dict, and keeps it when it is written to."""
    return collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict


def attributes(value: Any) -> Mapping[str, Any]:
    """What an object keeps, in its dictionary or its slots, by name."""
    held, places = dictionary(value) or {}, slots(type(value))
    return {**held, **_in_slots(value, places)} if places else held


def dictionary(value: Any) -> dict[str, Any] | None:
    """What an object keeps its attributes in; None where there is none, or its class hides it."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except Exception:
        return None
    return held if isinstance(held, dict) else None


def _in_slots(value: Any, places: Mapping[str, _Slot]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, slot in places.items():
        try:
            found[name] = slot.__get__(value)
        except AttributeError:  # nothing has been put there yet
            continue
    return found


@functools.lru_cache(maxsize=4096)
def slots(kind: type) -> Mapping[str, _Slot]:
    """Where objects of this type keep what is not in their dictionary, by name."""
    return {
        name: slot
        for owner in reversed(kind.__mro__)
        if "__slots__" in vars(owner)
        for name, slot in vars(owner).items()
        if isinstance(slot, _Slot)
    }


@functools.lru_cache(maxsize=4096)
def _kind(kind: type) -> type:
    return next(each for each in LISTS if issubclass(kind, each))

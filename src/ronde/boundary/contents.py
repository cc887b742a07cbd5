"""The numbers, texts and flags in a value, as something to compare.

Asked at every call of a model, of everything that its code names: how values of a type are looked into is
found once.
"""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy
import torch

from ronde.boundary.members import LISTS, attributes, copied, entries
from ronde.boundary.reach import BOOKKEEPING, SIMPLE, is_data
from ronde.boundary.torchscript import is_training
from ronde.boundary.weak_references import WEAK, behind

__all__ = ["SCALARS", "contents", "each_once"]

_PLAIN = {bool, int, float, str, type(None)}
_PYTHONS = {list, tuple, collections.deque}
SCALARS = (*SIMPLE, enum.Enum, numpy.generic)
# Of something larger only the type is looked at: a vocabulary is no setting.
_MOST = 256
_DEEP = 3

_Reader = Callable[[Any, int], Any]


def contents(value: Any, depth: int = _DEEP) -> Any:
    """What is in a value: itself where it is plain, its type where nothing is looked at.

    Args:
        depth: so many containers in one another are looked into.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    reader = _reader(kind)
    return kind if reader is None or depth == 0 else _asked(reader, value, depth - 1)


def _asked(reader: _Reader, value: Any, depth: int) -> Any:
    try:
        return reader(value, depth)
    except Exception:  # of an object's own
        return type(value)


def each_once(values: Iterable[Any]) -> list[Any]:
    """The contents of each value; of one that was there before (a configuration that layers share), where."""
    known: dict[int, int] = {}
    return [value if type(value) in _PLAIN else _once(value, known) for value in values]


def _once(value: Any, known: dict[int, int]) -> Any:
    reader = _reader(type(value))
    if reader is None:
        return type(value)
    count = len(known)
    first = known.setdefault(id(value), count)
    return _asked(reader, value, _DEEP - 1) if first == count else ("as", first)


@functools.lru_cache(maxsize=4096)
def _reader(kind: type) -> _Reader | None:
    """How values of this type are looked into; None where they are not."""
    found = next((reader for kinds, reader in _READERS if issubclass(kind, kinds)), None)
    if found is None and is_data(kind):
        return _attributes
    if found is _itself and not all(isinstance(each, _OF_PYTHON) for each in (kind.__eq__, kind.__hash__)):
        return _inherited
    return None if found is _nothing else found


_OF_PYTHON = types.WrapperDescriptorType


def _nothing(value: Any, depth: int) -> Any:
    return type(value)


def _itself(value: Any, depth: int) -> Any:
    return value


def _inherited(value: Any, depth: int) -> Any:
    """A number or text whose class compares in a way of its own, and mostly has no hash then."""
    kind: Any = next((kind for kind in (int, float, complex, str, bytes) if isinstance(value, kind)), None)
    return type(value), id(value) if kind is None else kind.__repr__(value)


def _member(value: Any, depth: int) -> Any:
    return type(value), id(value)  # there is one of each; how they compare is up to the user


def _scalar(value: Any, depth: int) -> Any:
    number = value.item()
    return number if number == number else "nan"


def _array(value: Any, depth: int) -> Any:
    if value.size > _MOST or value.dtype == object:
        return type(value)
    return value.shape, value.dtype.str, value.tobytes()


def _partial(value: Any, depth: int) -> Any:
    return contents(value.func, depth), *_each(value.args, depth), *_entries(value.keywords, depth)


def _module(value: Any, depth: int) -> Any:
    held = {name: item for name, item in vars(value).items() if name not in BOOKKEEPING}
    return type(value), is_training(value), *_entries(held, depth)


def _mapping(value: Any, depth: int) -> Any:
    held = value if type(value) is dict else copied(value)
    return type(value), len(held) > 0, *_entries(held, depth)


def _sequence(value: Any, depth: int) -> Any:
    items = value if type(value) in _PYTHONS else entries(value)
    if len(items) <= _MOST and _PLAIN.issuperset(map(type, items)):
        return type(value), *items
    return type(value), len(items) > 0, *_each(items, depth)


def _set(value: Any, depth: int) -> Any:
    items = entries(value)
    return type(value), len(items) > 0, frozenset(_each(items, depth))


def _attributes(value: Any, depth: int) -> Any:
    return type(value), *_entries(attributes(value), depth)


def _entries(value: Mapping[Any, Any], depth: int) -> Iterable[Any]:
    """Keys and contents; not of what is but its type, a mask for each length, say."""
    if len(value) > _MOST:
        return ()
    held = list(value.items())
    if _PLAIN.issuperset(map(type, value)) and _PLAIN.issuperset([type(item) for _, item in held]):
        return held
    return [
        (key if type(key) in _PLAIN else contents(key, 1), contents(item, depth))
        for key, item in held
        if _is_looked_at(item)
    ]


def _behind(value: Any, depth: int) -> Any:
    return type(value), contents(behind(value), depth)


def _each(value: Collection[Any], depth: int) -> Iterable[Any]:
    items = list(value) if len(value) <= _MOST else []
    return [contents(item, depth) for item in items if _is_looked_at(item)]


def _is_looked_at(value: Any) -> bool:
    return type(value) in _PLAIN or _reader(type(value)) is not None


# The first that fits.
_READERS: tuple[tuple[Any, _Reader], ...] = (
    (WEAK, _behind),
    (torch.Tensor, _nothing),
    (torch.nn.Module, _module),
    (enum.Enum, _member),
    (numpy.generic, _scalar),
    (numpy.ndarray, _array),
    ((int, float, complex, str, bytes, range, torch.dtype, torch.device), _itself),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType, type), _itself),
    (functools.partial, _partial),
    (dict, _mapping),
    ((set, frozenset), _set),
    (LISTS, _sequence),
)

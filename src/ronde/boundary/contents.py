"""The numbers, texts and flags in a value, as something to compare.

Asked at every call of a model, of everything that its code names: how values of a type are looked into is
found once.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import threading
import types
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy
import torch

from ronde.boundary.cached_functions import CACHED, kept_for_all
from ronde.boundary.members import CELLS, LISTS, attributes, cells, copied, entries, holds_numbers
from ronde.boundary.reach import BOOKKEEPING, SIMPLE, is_data
from ronde.boundary.weak_references import WEAK, behind
from ronde.modules.torchscript import is_training
from ronde.patching.caller import is_users

__all__ = ["SCALARS", "Length", "contents", "each_once", "without_lengths"]

_PLAIN = {bool, int, float, str, type(None)}
_PYTHONS = {list, tuple, collections.deque}
SCALARS = (*SIMPLE, enum.Enum, numpy.generic)
# Of something larger only the type is looked at: a vocabulary is no setting.
_MOST, _BYTES = 512, 1 << 13
# So many containers in one another are looked into, whatever they are; what lies deeper, as far as it goes.
_DEEP, _DEEPEST, _FEW = 3, -12, 256


class Length(int):
    """How much there is of what is not looked into: tensors, mostly."""

    __slots__ = ()


class _Look:
    """One look at a model's values.

    Args:
        lengths: whether it matters how long something is, or only whether it is empty.
    """

    __slots__ = ("_deep", "_known", "length")

    def __init__(self, *, lengths: bool) -> None:
        self.length: Callable[[int], Any] = Length if lengths else bool
        self._known: dict[int, int] = {}
        self._deep: set[int] = set()

    def first(self, value: Any) -> Any:
        """The contents of a value, or where it was before."""
        reader = _reader(type(value))
        if reader is None:
            return _told(type(value))
        count = len(self._known)
        place = self._known.setdefault(id(value), count)
        return _asked(reader, value, _DEEP - 1, self) if place == count else ("as", place)

    def goes_deeper(self, value: Any, depth: int) -> bool:
        """Whether there is still room for something that lies deep, which may lead back to where it is."""
        if depth < _DEEPEST or len(self._deep) >= _FEW or id(value) in self._deep or id(value) in self._known:
            return False
        self._deep.add(id(value))
        return True


_Reader = Callable[[Any, int, _Look], Any]


def contents(value: Any, *, lengths: bool = False) -> Any:
    """What is in a value: itself where it is plain, its type where nothing is looked at.

    Args:
        lengths: whether it matters how long something is that is not looked into.
    """
    return value if type(value) in _PLAIN else _Look(lengths=lengths).first(value)


def each_once(values: Iterable[Any], *, lengths: bool = False) -> list[Any]:
    """The contents of each value; of one that was there before (a configuration that layers share), where."""
    look = _Look(lengths=lengths)
    return [value if type(value) in _PLAIN else look.first(value) for value in values]


def without_lengths(found: Any) -> Any:
    """Contents that tell of each length only whether there is something."""
    if type(found) is Length:
        return "some" if found else "none"
    if type(found) in (tuple, frozenset):
        return type(found)(map(without_lengths, found))
    return found


def _inside(value: Any, depth: int, look: _Look) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    reader = _reader(kind)
    if reader is None or (depth <= 0 and reader not in _FLAT and not look.goes_deeper(value, depth)):
        return _told(kind)
    return _asked(reader, value, depth - 1, look)


def _asked(reader: _Reader, value: Any, depth: int, look: _Look) -> Any:
    try:
        return reader(value, depth, look)
    except Exception:  # of an object's own
        return type(value)


@functools.lru_cache(maxsize=4096)
def _reader(kind: type) -> _Reader | None:
    """How values of this type are looked into; None where they are not."""
    found = next((reader for kinds, reader in _READERS if issubclass(kind, kinds)), None)
    if found is None and is_data(kind):
        return _attributes
    if found is _itself and not all(isinstance(each, _OF_PYTHON) for each in (kind.__eq__, kind.__hash__)):
        return _inherited
    return None if found is _nothing else found


@functools.lru_cache(maxsize=4096)
def _told(kind: type) -> type:
    """The type as which something is told that is not looked into: ranks change that of parameters."""
    return torch.Tensor if issubclass(kind, torch.Tensor) else kind


_OF_PYTHON = types.WrapperDescriptorType


def _nothing(value: Any, depth: int, look: _Look) -> Any:
    return type(value)


def _itself(value: Any, depth: int, look: _Look) -> Any:
    return value


def _inherited(value: Any, depth: int, look: _Look) -> Any:
    """A number or text whose class compares in a way of its own, and mostly has no hash then."""
    kind: Any = next((kind for kind in (int, float, complex, str, bytes) if isinstance(value, kind)), None)
    return type(value), id(value) if kind is None else kind.__repr__(value)


def _member(value: Any, depth: int, look: _Look) -> Any:
    return type(value), id(value)  # there is one of each; how they compare is up to the user


def _scalar(value: Any, depth: int, look: _Look) -> Any:
    number = value.item()
    return number if number == number else "nan"


def _spelled(value: Any, depth: int, look: _Look) -> Any:
    """What compares in a way of its own, and is told by its text."""
    return type(value), str(value)


def _slice(value: slice, depth: int, look: _Look) -> Any:
    return slice, *_each((value.start, value.stop, value.step), depth, look)


def _array(value: Any, depth: int, look: _Look) -> Any:
    if value.dtype == object:
        held = value.ravel().tolist() if value.size <= _MOST else ()
        return type(value), value.shape, *_each(held, depth, look)
    if value.nbytes > _BYTES:
        return type(value)
    return value.shape, value.dtype.str, value.tobytes()


def _cells(value: Any, depth: int, look: _Look) -> Any:
    if not holds_numbers(value) or memoryview(value).nbytes > _BYTES:
        return type(value)
    return type(value), cells(value)


def _partial(value: Any, depth: int, look: _Look) -> Any:
    held = _inside(value.func, depth, look)
    return held, *_each(value.args, depth, look), *_entries(value.keywords, depth, look)


def _module(value: Any, depth: int, look: _Look) -> Any:
    held = {name: item for name, item in vars(value).items() if name not in BOOKKEEPING}
    return type(value), is_training(value), *_entries(held, depth, look)


def _mapping(value: Any, depth: int, look: _Look) -> Any:
    held = value if type(value) is dict else copied(value)
    return type(value), look.length(len(held)), *_entries(held, depth, look)


def _sequence(value: Any, depth: int, look: _Look) -> Any:
    items = value if type(value) in _PYTHONS else entries(value)
    if len(items) <= _MOST and _PLAIN.issuperset(map(type, items)):
        return type(value), *items
    return type(value), look.length(len(items)), *_each(items, depth, look)


def _set(value: Any, depth: int, look: _Look) -> Any:
    items = entries(value)
    return type(value), look.length(len(items)), frozenset(_each(items, depth, look))


def _attributes(value: Any, depth: int, look: _Look) -> Any:
    return type(value), *_entries(attributes(value), depth, look)


def _of_this_thread(value: Any, depth: int, look: _Look) -> Any:
    return type(value), *_entries(vars(value), depth, look)


def _optimizer(value: Any, depth: int, look: _Look) -> Any:
    """Its settings: what it keeps for each parameter is tensors, and a rank may hold a part of it."""
    groups = attributes(value).get("param_groups", ())
    settings = ({name: item for name, item in group.items() if name != "params"} for group in groups)
    return type(value), *(tuple(_entries(each, depth, look)) for each in settings)


def _cached(value: Any, depth: int, look: _Look) -> Any:
    """Whether a function has cached something, which it does not make again, and what is there once."""
    if not is_users(value.__wrapped__):
        return type(value)
    return type(value), value.cache_info().currsize > 0, *_each(kept_for_all(value), depth, look)


def _entries(value: Mapping[Any, Any], depth: int, look: _Look) -> Iterable[Any]:
    """Keys and contents; not of what is but its type, a mask for each length, say."""
    if len(value) > _MOST:
        return ()
    if _PLAIN.issuperset(map(type, value)) and _PLAIN.issuperset(map(type, value.values())):
        return tuple(value), tuple(value.values())
    return [
        (key if type(key) in _PLAIN else _inside(key, 1, look), _inside(item, depth, look))
        for key, item in list(value.items())
        if _is_looked_at(item)
    ]


def _behind(value: Any, depth: int, look: _Look) -> Any:
    return type(value), _inside(behind(value), depth, look)


def _each(value: Collection[Any], depth: int, look: _Look) -> Iterable[Any]:
    items = list(value) if len(value) <= _MOST else []
    return [_inside(item, depth, look) for item in items if _is_looked_at(item)]


def _is_looked_at(value: Any) -> bool:
    return type(value) in _PLAIN or _reader(type(value)) is not None


# What holds nothing else.
_FLAT = {_itself, _inherited, _member, _scalar, _spelled}
_TIMES = (datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo)
# The first that fits.
_READERS: tuple[tuple[Any, _Reader], ...] = (
    (WEAK, _behind),
    (torch.Tensor, _nothing),
    (torch.nn.Module, _module),
    (enum.Enum, _member),
    (numpy.generic, _scalar),
    (numpy.ndarray, _array),
    ((int, float, complex, str, bytes, range, torch.dtype, torch.device), _itself),
    ((decimal.Decimal, fractions.Fraction, pathlib.PurePath, uuid.UUID, *_TIMES), _spelled),
    (slice, _slice),
    (CELLS, _cells),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType, type), _itself),
    (functools.partial, _partial),
    (CACHED, _cached),
    (threading.local, _of_this_thread),
    (torch.optim.Optimizer, _optimizer),
    (torch.optim.lr_scheduler.LRScheduler, _attributes),
    (dict, _mapping),
    ((set, frozenset), _set),
    (LISTS, _sequence),
)

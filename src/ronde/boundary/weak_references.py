"""Weak references: what they lead to, and what they lead to from a copy of a model.

A copy of a module leads weakly to where the module itself does, a child to the parent of the original: what
it writes there, it would write to the model. So those of a copy are set anew, and what is a library's own at
the end of one (a trainer, say) is kept out of reach.
"""

from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from ronde.boundary.members import attributes, dict_kind, entries, slots

__all__ = ["WEAK", "astray", "behind", "follow_copies", "put"]

WEAK: tuple[type, ...] = (weakref.ref, *weakref.ProxyTypes)


def behind(value: Any) -> Any:
    """What a weak reference leads to, None where that is gone; any other value is itself."""
    if issubclass(type(value), weakref.ref):
        return weakref.ref.__call__(value)
    if type(value) in weakref.ProxyTypes:
        try:
            return value.__reduce_ex__.__self__
        except Exception:  # gone, or of a class that answers for itself
            return None
    return value


def follow_copies(copies: Mapping[int, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Have the weak references that copies hold lead to copies, too.

    Args:
        copies: `copy.deepcopy`'s memory: by the id of what was copied its copy, or itself where shared.

    Yields:
        of each one that leads elsewhere: the object or container that holds it, its key there, and itself.
    """
    for copied, key, value in _held_by(copies):
        if not issubclass(type(value), WEAK):
            continue
        target = behind(value)
        inside = copies.get(id(target))
        if inside is None:
            yield copied, key, value
        elif inside is not target:
            put(copied, key, _leading_to(inside, value))


def astray(copies: Mapping[int, Any]) -> str:
    """A container of copies that leads weakly to what was copied, and cannot be set anew; "" without one."""
    for _, key, value in _held_by(copies):
        if any(copies.get(id(target), target) is not target for target in _weakly_in(value)):
            return f"the {type(value).__name__} {key}"
    return ""


def _held_by(copies: Mapping[int, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """What each copy holds: the copy, a key there, and the value; nothing of what is shared."""
    for known, copied in list(copies.items()):
        if known not in (id(copied), id(copies)):
            for key, value in _held(copied):
                yield copied, key, value


def _weakly_in(value: Any) -> list[Any]:
    kind = type(value)
    if issubclass(kind, (tuple, set, frozenset, collections.deque)):
        found = entries(value)
    elif issubclass(kind, (weakref.WeakKeyDictionary, weakref.WeakSet)):
        found = list(value.data)
    elif issubclass(kind, weakref.WeakValueDictionary):
        found = list(value.data.values())
    else:
        return []
    return [behind(each) for each in found if issubclass(type(each), WEAK)]


def _held(value: Any) -> list[tuple[Any, Any]]:
    kind = type(value)
    if issubclass(kind, dict):
        return list(dict_kind(value).items(value))
    if issubclass(kind, list):
        return list(enumerate(list.__iter__(value)))
    return [] if issubclass(kind, (type, types.FunctionType)) else list(attributes(value).items())


def put(holder: Any, key: Any, value: Any) -> None:
    """Put a value where `follow_copies` has found another."""
    kind = type(holder)
    if issubclass(kind, dict):
        dict_kind(holder).__setitem__(holder, key, value)
    elif issubclass(kind, list):
        list.__setitem__(holder, key, value)
    elif key in (places := slots(kind)):
        places[key].__set__(holder, value)
    else:
        object.__getattribute__(holder, "__dict__")[key] = value


def _leading_to(target: Any, value: Any) -> Any:
    """A weak reference of the same class."""
    if isinstance(value, weakref.WeakMethod):
        method = value()
        return value if method is None else weakref.WeakMethod(types.MethodType(method.__func__, target))
    return weakref.ref(target) if issubclass(type(value), weakref.ref) else weakref.proxy(target)

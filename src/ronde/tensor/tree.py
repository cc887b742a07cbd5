"""Tensors inside nested values: tuples, named tuples, lists, mappings, dataclasses, plain objects."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy
import torch

from ronde.patching.caller import is_users

__all__ = ["Opaque", "caches", "instances", "leaves", "map_leaves", "replace_caches", "structure"]


_Kind = TypeVar("_Kind")


class Opaque(Exception):
    """A value of an unknown type holds tensors and cannot be rebuilt."""


def _is_namedtuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def _is_named_result(value: object) -> bool:
    """Return whether a value is a named result of torch, such as `max`'s."""
    return isinstance(value, tuple) and hasattr(type(value), "n_sequence_fields")


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """Return (key, child) pairs of a container, or None for a leaf."""
    try:
        return _pairs(value)
    except Exception:  # raised by the object's code, such as a mapping that fetches its values
        raise Opaque(type(value).__name__) from None


def _pairs(value: Any) -> list[tuple[Any, Any]] | None:
    kind = type(value)
    if kind is tuple or kind is list or _is_namedtuple(value) or _is_named_result(value):
        return list(enumerate(value))
    if kind is dict:
        return list(value.items())
    if isinstance(value, Mapping):
        pairs = [(key, child) for key, child in value.items()]  # `list` would call `__len__`
        fixed = not hasattr(kind, "__setitem__") and any(
            isinstance(child, torch.Tensor) for _, child in pairs
        )
        return None if fixed else pairs
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A field that is not set in `__init__` may not exist yet.
        names = (field.name for field in dataclasses.fields(value))
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    if kind is types.SimpleNamespace:
        return list(vars(value).items())
    if _is_cache(value) or (_keeps_attributes(kind) and _is_made_of_tensors(value)):
        return list(vars(value).items())
    return None


def _is_cache(value: Any) -> bool:
    """Return whether a value is a key-value cache of Hugging Face, or a layer's.

    Such objects are taken apart by their attributes.
    """
    return type(value).__module__ == "transformers.cache_utils"


def caches(value: Any) -> Iterator[Any]:
    """Yield key-value caches among arguments or in a model's output."""
    if isinstance(value, torch.Tensor):
        return
    if _is_cache(value):
        yield value
        return
    for _, child in _children(value) or ():
        yield from caches(child)


def replace_caches(value: Any, stand_in: Any) -> Any:
    """Replace each key-value cache in a value by `stand_in`."""
    if isinstance(value, torch.Tensor):
        return value
    if _is_cache(value):
        return stand_in
    children = _children(value) or ()
    mapped = {key: replace_caches(child, stand_in) for key, child in children}
    return value if all(mapped[key] is child for key, child in children) else _rebuilt(value, mapped)


@functools.lru_cache(maxsize=4096)
def _keeps_attributes(kind: type) -> bool:
    """Return whether a user's class has plain attributes only, which copying preserves."""
    *own, last = kind.__mro__
    if last is not object or type(kind) is not type or not own:
        return False
    if any(vars(owner).get("__slots__") for owner in own):
        return False
    return all(is_users(each) and _SAYS_ITSELF.isdisjoint(vars(each)) for each in own)


# A class with one of these may do anything when its objects are read, written to or copied.
_SAYS_ITSELF = {"__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__copy__"} | {
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
}


def _is_made_of_tensors(value: Any) -> bool:
    """Return whether an object holds only tensors and plain values: a batch."""
    found = list(_within(value, _DEPTH))
    return any(issubclass(type(each), torch.Tensor) for each in found) and all(map(_is_plain, found))


def _within(value: Any, depth: int) -> Iterator[Any]:
    """Yield the contents of nested containers and objects, down to `depth` levels.

    A container at the last level, or one with too many items, is yielded itself.
    """
    kind = type(value)
    if kind in (list, tuple, dict) or (depth and _keeps_attributes(kind)):
        held = value if kind in (list, tuple) else (value if kind is dict else vars(value)).values()
        if depth and len(held) <= _MOST:
            for each in held:
                yield from _within(each, depth - 1)
            return
    yield value


_DEPTH = 4
_MOST = 256
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_PLAIN = (torch.Tensor, torch.device, torch.dtype, numpy.ndarray, numpy.generic, enum.Enum, *_SIMPLE)


def _is_plain(value: Any) -> bool:
    return issubclass(type(value), _PLAIN)


def _rebuilt(value: Any, children: dict[Any, Any]) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple(children.values())
    if kind is list:
        return list(children.values())
    if _is_namedtuple(value):
        return kind(*children.values())
    if _is_named_result(value):
        return kind(list(children.values()))
    if kind is dict:
        return children
    new = copy.copy(value)
    if isinstance(value, Mapping):
        for key, child in children.items():
            new[key] = child
    elif dataclasses.is_dataclass(value):
        for key, child in children.items():
            object.__setattr__(new, key, child)
    else:
        vars(new).update(children)
    return new


def map_leaves(fn: Callable[[Any], Any], value: Any, *, always: bool = False) -> Any:
    """Rebuild `value` with `fn` applied to every leaf.

    Unchanged containers are returned as they are, unless they are `always` to be rebuilt: then the caller may
    change them.
    """
    if isinstance(value, torch.Tensor):
        return fn(value)
    children = _children(value)
    if children is None:
        return fn(value)
    mapped = {key: map_leaves(fn, child, always=always) for key, child in children}
    if not always and all(mapped[key] is child for key, child in children):
        return value
    return _rebuilt(value, mapped)


_LISTS = (list, tuple, set, frozenset, collections.deque)
# Types that may hold tensors without being a value made of them.
_CODE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    torch.nn.Module,
)


def _hides_tensors(value: Any, depth: int = 4) -> bool:
    """Return whether an opaque object leads to tensors, or cannot be inspected."""
    try:
        return _leads_to_tensors(value, depth)
    except Exception:  # raised by the object's own code
        return True


def _leads_to_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, (torch.Tensor, types.GeneratorType)):
        return True
    if _is_mask_of_all_rows(value):
        return False
    if depth == 0 or isinstance(value, (str, bytes, int, float, *_CODE)):
        return False
    if isinstance(value, Mapping):
        return any(_hides_tensors(child, depth - 1) for child in value.values())
    if isinstance(value, _LISTS):
        return any(_hides_tensors(child, depth - 1) for child in value)
    return any(_hides_tensors(child, depth - 1) for child in getattr(value, "__dict__", {}).values())


def _is_mask_of_all_rows(value: Any) -> bool:
    """Return whether a value is a `BlockMask` of `flex_attention` shared by all rows.

    Other masks tell rows by their position, which a part of the mask would not.
    """
    kind = type(value)
    if kind.__name__ != "BlockMask" or kind.__module__ != "torch.nn.attention.flex_attention":
        return False
    return value.kv_num_blocks.shape[0] == 1


def leaves(value: Any) -> Iterator[Any]:
    """Yield every leaf in order.

    Raises:
        Opaque: an object of an unknown type holds tensors in its attributes.
    """
    if isinstance(value, torch.Tensor):
        yield value
        return
    children = _children(value)
    if children is None:
        if _hides_tensors(value):
            raise Opaque(type(value).__name__)
        yield value
        return
    for _, child in children:
        yield from leaves(child)


def structure(value: Any) -> Any:
    """Return a hashable description of the containers and keys, without the leaves."""
    if isinstance(value, torch.Tensor):
        return None
    children = _children(value)
    if children is None:
        return None
    # By name: a model may make a new class of named tuples in every forward.
    kind = type(value)
    return (kind.__module__, kind.__qualname__), tuple((key, structure(child)) for key, child in children)


def instances(kind: type[_Kind], value: Any) -> Iterator[_Kind]:
    """Yield the instances of a class in an argument list."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from instances(kind, item)
    elif isinstance(value, dict):
        yield from instances(kind, list(value.values()))

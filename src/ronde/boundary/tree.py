"""Tensors inside nested values: tuples, named tuples, lists, mappings, dataclasses, plain namespaces."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

__all__ = ["Opaque", "leaves", "map_leaves", "structure"]


class Opaque(Exception):
    """A value of an unknown type holds tensors; it cannot be taken apart and rebuilt."""


def _is_namedtuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """(key, child) pairs of a container, or None for a leaf."""
    kind = type(value)
    if kind is tuple or kind is list or _is_namedtuple(value):
        return list(enumerate(value))
    if kind is dict or isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if kind is types.SimpleNamespace:
        return list(vars(value).items())
    return None


def _rebuilt(value: Any, children: dict[Any, Any]) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple(children.values())
    if kind is list:
        return list(children.values())
    if _is_namedtuple(value):
        return kind(*children.values())
    if kind is dict:
        return children
    new = copy.copy(value)
    if isinstance(value, Mapping):
        for key, child in children.items():
            new[key] = child
    elif kind is types.SimpleNamespace:
        vars(new).update(children)
    else:
        for key, child in children.items():
            object.__setattr__(new, key, child)
    return new


def map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    """Rebuild `value` with `fn` applied to every leaf; unchanged containers are returned as they are."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    children = _children(value)
    if children is None:
        return fn(value)
    mapped = {key: map_leaves(fn, child) for key, child in children}
    if all(mapped[key] is child for key, child in children):
        return value
    return _rebuilt(value, mapped)


def leaves(value: Any) -> Iterator[Any]:
    """Every leaf in order.

    Raises:
        Opaque: for an object of another type that holds tensors in its attributes.
    """
    if isinstance(value, torch.Tensor):
        yield value
        return
    children = _children(value)
    if children is None:
        attributes = getattr(value, "__dict__", None)
        if (
            attributes
            and not isinstance(value, (type, types.ModuleType, torch.nn.Module))
            and not callable(value)
            and any(isinstance(child, torch.Tensor) for child in attributes.values())
        ):
            raise Opaque(type(value).__name__)
        yield value
        return
    for _, child in children:
        yield from leaves(child)


def structure(value: Any) -> Any:
    """A hashable description of the containers and keys, without the leaves."""
    if isinstance(value, torch.Tensor):
        return None
    children = _children(value)
    if children is None:
        return None
    return type(value), tuple((key, structure(child)) for key, child in children)

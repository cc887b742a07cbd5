"""What a tree of modules, or the arguments of a call, hold in plain containers and objects; and the way back."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ronde.rowwise.generators import GENERATORS
from ronde.rowwise.rows import Rows

__all__ = ["VARIABLE", "Bindings", "Held"]

VARIABLE = "the variable"
_DEPTH = 6
_MOST = 1 << 16
# What torch keeps on each module: tables of hooks, mostly empty.
_OF_EVERY_MODULE = vars(torch.nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
# Objects of these are not looked into.
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)
_LIBRARIES = {"torch", "numpy", "threading", "logging", "queue", "multiprocessing", "concurrent", "_thread"}


@dataclasses.dataclass(frozen=True, slots=True)
class Bindings:
    """Some of the global variables of a file.

    Attributes:
        variables: all of them.
        names: those that are meant.
    """

    variables: dict[str, Any]
    names: frozenset[str]


class Held:
    """What roots hold: each container and object with its content.

    Args:
        roots: each with its name.

    Attributes:
        tensors: the tensors among that, and their names.
        counts: names of numbers of rows.
        generators: random generators.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.counts: list[str] = []
        self.generators: list[Any] = []
        self._contents: dict[int, tuple[Any, Any]] = {}
        for name, root in roots:
            self._add(name, root, _DEPTH)

    def _add(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append((name, value))
        elif isinstance(value, Rows):
            self.counts.append(name)
        elif isinstance(value, GENERATORS):
            self.generators.append(value)
        elif depth and not isinstance(value, torch.nn.Module):
            self._look_into(name, value, depth)

    def _look_into(self, name: str, value: Any, depth: int) -> None:
        content = _content(value)
        if content is None or id(value) in self._contents or len(self._contents) > _MOST:
            return
        self._contents[id(value)] = value, content
        for key, each in _entries(content):
            if key not in _OF_EVERY_MODULE:
                self._add(_joined(name, key), each, depth - 1)

    def changed(self) -> bool:
        """Whether something holds something else by now."""
        return any(not _is_same(_content(value), before) for value, before in self._contents.values())

    def restore(self) -> None:
        for value, before in self._contents.values():
            if not _is_same(_content(value), before):
                _refill(value, before)


def _content(value: Any) -> Any:
    """What a container or an object holds, as a container of its own; None for what is neither."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, set, frozenset, tuple, collections.deque)):
        return list(value)
    if isinstance(value, Bindings):
        return {name: value.variables[name] for name in value.names if name in value.variables}
    if isinstance(value, types.CellType):
        return {"": value.cell_contents} if _is_filled(value) else {}
    kind = type(value)
    if (
        isinstance(value, _CODE)
        or kind.__module__.split(".")[0] in _LIBRARIES
        or kind.__module__ == "builtins"
    ):
        return None
    own = getattr(value, "__dict__", {})
    slots = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    return {**slots, **own} if isinstance(own, dict) and (own or slots) else None


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _slots(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                yield name


def _entries(content: Any) -> list[tuple[Any, Any]]:
    return list(content.items()) if isinstance(content, dict) else [("", each) for each in content]


def _joined(name: str, key: Any) -> str:
    """The name of an entry; a module's parameters, buffers and modules have it as attributes do."""
    if not isinstance(key, str) or key in ("", "_parameters", "_buffers", "_modules"):
        return name
    if name == VARIABLE:
        return f"{VARIABLE} {key}"
    return f"{name}.{key}" if name else key


def _is_same(now: Any, before: Any) -> bool:
    if type(now) is not type(before) or len(now) != len(before):
        return False
    if isinstance(now, dict):
        pairs = zip(now.items(), before.items(), strict=True)
        return all(key == other and value is held for (key, value), (other, held) in pairs)
    return all(value is held for value, held in zip(now, before, strict=True))


def _refill(value: Any, before: Any) -> None:
    """Have a container or an object hold what it did."""
    if isinstance(value, Bindings):
        value.variables.update(before)
    elif isinstance(value, types.CellType):
        value.cell_contents = before[""]
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(before)
    elif isinstance(value, (list, collections.deque)):
        value.clear()
        value.extend(before)
    elif not isinstance(value, (tuple, frozenset)):
        for name in _content(value) or {}:
            if name not in before:
                object.__delattr__(value, name)
        for name, held in before.items():
            object.__setattr__(value, name, held)

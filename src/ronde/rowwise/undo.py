"""Undo of an observed call: restores state that the call has changed.

It covers the module tree (tensors, by copy on write, plain attributes and plain containers), and the random
generators of torch, numpy and Python.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ronde.patching.caller import is_users
from ronde.patching.torch_internals import DisableTorchFunction, TensorBase
from ronde.rowwise.generators import GENERATORS, States
from ronde.rowwise.labels import Marks, address
from ronde.rowwise.rows_int import is_counted
from ronde.tensor.global_tensor import GlobalTensor

__all__ = ["ContainerSnapshot", "Undo", "is_open"]

_DEPTH = 6
# Container classes, whose own methods are called, as those of a subclass may do anything.
_CONTAINERS = (collections.OrderedDict, dict, list, set, collections.deque, tuple)


# A namespace defines object's `__getattribute__` as its own.
_SHOW = (object.__getattribute__, types.SimpleNamespace.__getattribute__)

# torch's attributes of each module: tables of hooks, mostly empty.
_OF_EVERY_MODULE = vars(torch.nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}


def is_open(kind: type) -> bool:
    """Return whether instances of a class are not callable and show plain attributes."""
    hides = kind.__getattribute__ not in _SHOW
    return not hides and not any("__call__" in vars(each) for each in kind.__mro__)


def attributes_of(value: Any, *, any_class: bool = False) -> dict[Any, Any] | None:
    """Return the attributes of a user's object or a plain namespace; else None.

    Args:
        any_class: whether objects of libraries are included.
    """
    kind = type(value)
    if issubclass(kind, (type, torch.nn.Module, types.ModuleType)) or not is_open(kind):
        return None
    plain = kind in (types.SimpleNamespace, argparse.Namespace) or dataclasses.is_dataclass(kind)
    if not (plain or any_class or is_users(kind)):
        return None
    held = getattr(value, "__dict__", None)
    return held if isinstance(held, dict) else None


# A weak proxy has the methods of any class.
_STAYING = (torch.nn.Module, *weakref.ProxyTypes)


class ContainerSnapshot:
    """The contents of a tree of modules or arguments, container by container.

    Attributes:
        tensors: tensors in the tree, with their names.
        counts: names of numbers of rows.
        generators: random generators in the tree.
        used_up: descriptions of iterators, which a read would consume.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]], *, any_class: bool = False) -> None:
        self._any_class = any_class
        self._containers: dict[int, tuple[Any, Any]] = {}
        self.generators: list[Any] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.counts: list[str] = []
        self.used_up: list[str] = []
        for name, root in roots:
            self._add(name, root, _DEPTH)

    @staticmethod
    def by(module: torch.nn.Module) -> ContainerSnapshot:
        """Collect the contents of a module and its submodules."""
        held = ContainerSnapshot((name, vars(part)) for name, part in module.named_modules())
        # TorchScript keeps parameters and buffers elsewhere.
        known = {id(tensor) for _, tensor in held.tensors}
        own = (*module.named_parameters(), *module.named_buffers())
        held.tensors += [(name, tensor) for name, tensor in own if id(tensor) not in known]
        return held

    def _add(self, name: str, value: Any, depth: int) -> None:
        if issubclass(type(value), GlobalTensor):
            return  # sharded rows from another call: refused where they are used
        if issubclass(type(value), torch.Tensor):
            self.tensors.append((name, value))
        elif is_counted(value):
            self.counts.append(name)
        elif issubclass(type(value), GENERATORS):
            self.generators.append(value)
        elif issubclass(type(value), Iterator) and not issubclass(type(value), _STAYING):
            kind = "iterator" if type(value) is types.GeneratorType else type(value).__name__
            self.used_up.append(f"the {kind} {name}")
        elif depth:
            module = issubclass(type(value), torch.nn.Module)
            self._add_container(name, vars(value) if module else value, depth)

    def _add_container(self, name: str, value: Any, depth: int) -> None:
        attributes = attributes_of(value, any_class=self._any_class)
        content = value if attributes is None else attributes
        if not issubclass(type(content), _CONTAINERS) or id(content) in self._containers:
            return
        before = _copy(content)
        if not issubclass(type(content), tuple):
            self._containers[id(content)] = content, before
        if isinstance(content, dict):
            for key, each in before:
                if not (type(key) is str and key in _OF_EVERY_MODULE):
                    self._add(_joined(name, key), each, depth - 1)
        else:
            for each in before:
                self._add(name, each, depth - 1)

    def changed(self) -> bool:
        """Return whether a container's content has changed."""
        return any(True for _ in self.changes())

    def changes(self) -> Iterator[str]:
        """Yield names of changed entries or containers."""
        for held, before in self._containers.values():
            now = _copy(held)
            if _is_same(held, now, before):
                continue
            if isinstance(held, dict):
                known = dict(before)
                others = (key for key, value in now if known.get(key, now) is not value)
                yield from (key for key in others if type(key) is str)
            yield f"a {type(held).__name__}"

    def restore(self) -> None:
        for held, before in self._containers.values():
            if not _is_same(held, _copy(held), before):
                _refill(held, before)


def _joined(name: str, key: Any) -> str:
    """Return the name of an entry; `_parameters`, `_buffers` and `_modules` are omitted."""
    if type(key) is not str or key in ("_parameters", "_buffers", "_modules"):
        return name
    return f"{name}.{key}" if name else key


def _base(content: Any) -> Any:
    return next(each for each in _CONTAINERS if issubclass(type(content), each))


def _copy(content: Any) -> tuple[Any, ...]:
    """Return the content of a container; pairs for a mapping."""
    base = _base(content)
    return tuple(base.items(content) if issubclass(base, dict) else base.__iter__(content))


def _is_same(content: Any, now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    if len(now) != len(before):
        return False
    pairs = zip(now, before, strict=True)
    if isinstance(content, dict):
        return all(key is other and value is held for (key, value), (other, held) in pairs)
    return all(value is held for value, held in pairs)


def _refill(content: Any, before: Any) -> None:
    base = _base(content)
    base.clear(content)
    if issubclass(base, (dict, set)):
        base.update(content, before)
    else:
        base.extend(content, before)


class Undo:
    """The state that a module's call may change, from before the call.

    Args:
        arguments: arguments of the call.
        outside: variables outside of the module that its code names, with their values.

    Attributes:
        module: contents of the module tree.
        outside: contents of these variables.
        arguments: contents of the arguments.
        generators: states of generators that it must not draw from (Python, numpy, the module's), and of
            others.
    """

    def __init__(
        self, module: torch.nn.Module, arguments: Any, outside: Iterable[tuple[str, Any]] = ()
    ) -> None:
        self.module = ContainerSnapshot.by(module)
        self.outside = ContainerSnapshot(outside)
        self.arguments = ContainerSnapshot([("", arguments)], any_class=True)
        self.generators = (
            States.of_hosts(self.module.generators),
            States.of_torch(self.outside.generators),
        )
        self._names = {address(tensor): name for name, tensor in self.module.tensors}
        self._given = {address(tensor) for _, tensor in self.arguments.tensors}
        kinds = {id(tensor): "buffer" for tensor in module.buffers()}
        kinds |= {id(tensor): "parameter" for tensor in module.parameters()}
        self._objects = {
            id(tensor): f"its {kinds.get(id(tensor), 'tensor')} {name}"
            for name, tensor in self.module.tensors
        }
        self._objects |= {id(tensor): "its argument" for _, tensor in self.arguments.tensors}
        self._gradients = [(each, _gradient(each)) for _, each in self.module.tensors if each.is_leaf]
        given = [tensor for _, tensor in self.arguments.tensors]
        self._written_on = [(tensor, dict(vars(tensor))) for tensor in given]
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the module's name for a tensor's memory; None if unknown."""
        return self._names.get(address(tensor))

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor shares memory with an argument."""
        return address(tensor) in self._given

    def called(self, tensor: torch.Tensor) -> str | None:
        """Return a description of a tensor object of the module or arguments.

        Other tensors in the same memory have none.
        """
        return self._objects.get(id(tensor))

    def keep(self, written: Iterable[torch.Tensor], marks: Marks) -> None:
        """Copy the present values of old tensors before they are written to."""
        for tensor in written:
            place = address(tensor)
            if place and place not in self._before and not marks.is_new(tensor):
                self._before[place] = tensor, _whole(tensor).clone()

    def has_gradients(self) -> bool:
        """Return whether a gradient was added to one of the module's tensors."""
        return any(_gradient(tensor) is not before for tensor, before in self._gradients)

    def writes_on_arguments(self) -> bool:
        """Return whether attributes were set on a tensor among the arguments."""
        return any(vars(tensor) != before for tensor, before in self._written_on)

    def changes(self) -> str:
        """Return a name of state that the call has changed; "" if it changed none."""
        written = [name for place in self._before if (name := self._names.get(place)) is not None]
        return next(iter((*written, *self.module.changes(), *self.outside.changes())), "")

    def unwind(self) -> None:
        """Restore all state from before the call."""
        with torch.no_grad(), DisableTorchFunction():
            for tensor, before in self._before.values():
                _whole(tensor).copy_(before)
            for tensor, gradient in self._gradients:
                if _gradient(tensor) is not gradient:
                    tensor.grad = gradient
        self.module.restore()
        self.outside.restore()
        self.arguments.restore()
        for states in self.generators:
            states.restore()


_grad: Any = TensorBase.grad


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient as stored; `tensor.grad` would gather a sharded one."""
    with DisableTorchFunction():
        return _grad.__get__(tensor)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor's storage, bypassing autograd."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)

"""The way back from an observed call that must not be cut: what it changed is as before.

That is what the module's own tree holds: tensors, by copy on write, plain attributes and plain containers;
and the random generators of torch, numpy and Python.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from ronde.patching.caller import is_users
from ronde.rowwise.labels import Marks, address
from ronde.rowwise.rows import Rows

__all__ = ["Generators", "Held", "Undo", "is_open"]

_DEPTH = 6
_CONTAINERS = (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict)


# What torch keeps on each: tables of hooks, mostly empty.
_OF_EVERY_MODULE = vars(torch.nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}


def is_open(kind: type) -> bool:
    """Whether objects of a class are nothing to call, and show their attributes."""
    hides = kind.__getattribute__ is not object.__getattribute__
    return not hides and not any("__call__" in vars(each) for each in kind.__mro__)


def attributes_of(value: Any, *, any_class: bool = False) -> dict[Any, Any] | None:
    """The attributes of an object of the user's, or one that is nothing but these.

    Args:
        any_class: of a library's, too.
    """
    kind = type(value)
    plain = kind in (types.SimpleNamespace, argparse.Namespace) or dataclasses.is_dataclass(kind)
    if not plain:
        if issubclass(kind, (type, torch.nn.Module, types.ModuleType)) or not is_open(kind):
            return None
        if not (any_class or is_users(kind)):
            return None
    held = getattr(value, "__dict__", None)
    return held if isinstance(held, dict) else _Slots.of(value)


class _Slots(dict[Any, Any]):
    """The attributes of an object that keeps them in slots; what is set here is set there."""

    @staticmethod
    def of(value: Any) -> _Slots | None:
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        if not names:
            return None
        found = _Slots({name: getattr(value, name) for name in names if hasattr(value, name)})
        found.owner = value
        return found

    owner: Any = None

    def now(self) -> dict[str, Any]:
        return {name: getattr(self.owner, name) for name in self if hasattr(self.owner, name)}

    def put_back(self) -> None:
        for name, value in self.items():
            setattr(self.owner, name, value)


def within(value: Any) -> Iterable[Any]:
    """What a plain container or object holds."""
    if issubclass(type(value), dict):
        return list(value.values())
    if issubclass(type(value), (list, tuple, set, frozenset, collections.deque)):
        return list(value)
    return list((attributes_of(value) or {}).values())


class Held:
    """What a tree of modules, or the arguments of a call, hold: each container with its content.

    Attributes:
        tensors: the tensors among that, and their names.
        counts: names of numbers of rows.
        generators: random generators.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]], *, any_class: bool = False) -> None:
        self._any_class = any_class
        self._containers: dict[int, tuple[Any, Any]] = {}
        self.generators: list[Any] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.counts: list[str] = []
        for name, root in roots:
            self._add(name, root, _DEPTH)

    @staticmethod
    def by(module: torch.nn.Module) -> Held:
        """What a module and those in it hold."""
        held = Held((name, vars(part)) for name, part in module.named_modules())
        # TorchScript keeps them elsewhere.
        known = {id(tensor) for _, tensor in held.tensors}
        own = (*module.named_parameters(), *module.named_buffers())
        held.tensors += [(name, tensor) for name, tensor in own if id(tensor) not in known]
        return held

    def _add(self, name: str, value: Any, depth: int) -> None:
        if issubclass(type(value), torch.Tensor):
            self.tensors.append((name, value))
        elif issubclass(type(value), Rows):
            self.counts.append(name)
        elif issubclass(type(value), _GENERATORS):
            self.generators.append(value)
        elif depth and not issubclass(type(value), torch.nn.Module):
            self._add_container(name, value, depth)

    def _add_container(self, name: str, value: Any, depth: int) -> None:
        attributes = attributes_of(value, any_class=self._any_class)
        content = value if attributes is None else attributes
        if not isinstance(content, (*_CONTAINERS, tuple)) or id(content) in self._containers:
            return
        self._containers[id(content)] = content, _copy(content)
        if isinstance(content, dict):
            for key, each in list(content.items()):
                if key not in _OF_EVERY_MODULE:
                    self._add(_joined(name, key), each, depth - 1)
        else:
            for each in list(content):
                self._add(name, each, depth - 1)

    def changed(self) -> bool:
        """Whether a container holds something else by now."""
        return any(True for _ in self.changes())

    def changes(self) -> Iterator[str]:
        """Names of the entries, or containers, that are others by now."""
        for held, before in self._containers.values():
            now = _now(held)
            if _is_same(now, before):
                continue
            if isinstance(now, dict):
                yield from (str(key) for key, value in now.items() if before.get(key, now) is not value)
            yield f"a {type(held).__name__}"

    def restore(self) -> None:
        for held, before in self._containers.values():
            if isinstance(held, _Slots):
                held.put_back()
            elif not _is_same(held, before):
                _refill(held, before)


def _now(held: Any) -> Any:
    return held.now() if isinstance(held, _Slots) else held


def _joined(name: str, key: Any) -> str:
    """The name of an entry; a module's parameters, buffers and modules have it as attributes do."""
    if not isinstance(key, str) or key in ("_parameters", "_buffers", "_modules"):
        return name
    return f"{name}.{key}" if name else key


def _copy(content: Any) -> Any:
    if isinstance(content, tuple):
        return content
    return dict(content) if isinstance(content, dict) else list(content)


def _is_same(now: Any, before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        pairs = zip(now.items(), before.items(), strict=True)
        return all(key == other and value is held for (key, value), (other, held) in pairs)
    return all(value is held for value, held in zip(now, before, strict=True))


def _refill(now: Any, before: Any) -> None:
    now.clear()
    if isinstance(now, (dict, set)):
        now.update(before)
    else:
        now.extend(before)


_GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


class Generators:
    """States of random generators: torch's, those of Python and numpy, and those that a module keeps."""

    def __init__(self, kept: Iterable[Any]) -> None:
        self._torch = [(each, each.get_state()) for each in _torchs()]
        others = [random._inst, numpy.random.mtrand._rand, *kept]  # pyright: ignore[reportAttributeAccessIssue]
        self._others = [(each, _state(each)) for each in others]

    def others_moved(self) -> bool:
        """Whether one was drawn from that is not torch's own."""
        return any(repr(_state(each)) != repr(state) for each, state in self._others)

    def now(self) -> Generators:
        """The same generators as they are now."""
        return Generators([each for each, _ in self._others[2:]])

    def restore(self) -> None:
        for each, state in (*self._torch, *self._others):
            _set_state(each, state)


def _torchs() -> Iterator[torch.Generator]:
    yield torch.default_generator
    if torch.cuda.is_initialized():
        yield torch.cuda.default_generators[torch.cuda.current_device()]


class Undo:
    """What a call of a module may change, as it was before.

    Args:
        arguments: what it is given.
        outside: variables beside the module that its code names, and what they hold.

    Attributes:
        module: what the tree of modules holds.
        outside: what these variables hold.
        arguments: what the arguments hold.
    """

    def __init__(
        self, module: torch.nn.Module, arguments: Any, outside: Iterable[tuple[str, Any]] = ()
    ) -> None:
        self.module = Held.by(module)
        self.outside = Held(outside)
        self.arguments = Held([("", arguments)], any_class=True)
        self.generators = Generators(self.module.generators)
        self._names = {address(tensor): name for name, tensor in self.module.tensors}
        self._given = {address(tensor) for _, tensor in self.arguments.tensors}
        self._objects = {id(tensor): f"its {_kind(tensor)} {name}" for name, tensor in self.module.tensors}
        self._objects |= {id(tensor): "its argument" for _, tensor in self.arguments.tensors}
        self._gradients = [(each, each.grad) for _, each in self.module.tensors if each.is_leaf]
        given = [tensor for _, tensor in self.arguments.tensors]
        self._written_on = [(tensor, dict(vars(tensor))) for tensor in given]
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """What the module calls the memory that a tensor lies in."""
        return self._names.get(address(tensor))

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in the memory of an argument."""
        return address(tensor) in self._given

    def called(self, tensor: torch.Tensor) -> str | None:
        """What a tensor of the module's, or an argument, is called: this one, whatever lies in its memory."""
        return self._objects.get(id(tensor))

    def keep(self, written: Iterable[torch.Tensor], marks: Marks) -> None:
        """Before they are written to: copies of those that were there before the call."""
        for tensor in written:
            place = address(tensor)
            if place and place not in self._before and not marks.is_new(tensor):
                self._before[place] = tensor, _whole(tensor).clone()

    def has_gradients(self) -> bool:
        """Whether a gradient was added to one of the module's tensors."""
        return any(tensor.grad is not before for tensor, before in self._gradients)

    def writes_on_arguments(self) -> bool:
        """Whether attributes were set on a tensor among the arguments."""
        return any(vars(tensor) != before for tensor, before in self._written_on)

    def changes(self) -> str:
        """What the call has changed of the module, or beside it; "" where nothing is another."""
        written = [name for place in self._before if (name := self._names.get(place)) is not None]
        return next(iter((*written, *self.module.changes(), *self.outside.changes())), "")

    def unwind(self) -> None:
        """All as before the call."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for tensor, before in self._before.values():
                _whole(tensor).copy_(before)
            for tensor, gradient in self._gradients:
                if tensor.grad is not gradient:
                    tensor.grad = gradient
        self.module.restore()
        self.outside.restore()
        self.arguments.restore()
        self.generators.restore()


def _kind(tensor: torch.Tensor) -> str:
    return "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that it lies in, without autograd's knowing."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)

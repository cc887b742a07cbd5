"""Objects that raise when they are asked for anything that a forward pass would not ask them for."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hazards.harness import Hazard, Lambda, data, train

T = torch.Tensor


class Unasked(Exception):
    """No error that looking for an attribute would pass over."""


def _raises(*_: Any, **__: Any) -> Any:
    raise Unasked


_METHODS = (
    "__len__ __iter__ __contains__ __getitem__ __setitem__ __delitem__ __copy__ __deepcopy__ __reduce_ex__ "
    "__eq__ keys values items get copy clear update extend append"
).split()


def _silent(kind: type) -> type:
    """A subclass of one of Python's containers, none of whose methods is to be called."""
    return type(
        f"Silent{kind.__name__}", (kind,), {name: _raises for name in _METHODS if hasattr(kind, name)}
    )


class Irrep(tuple[int, ...]):
    """As a library for rotations has it: a tuple by which a layer is described."""

    def __len__(self) -> int:
        raise NotImplementedError


class Proxy:
    """Stands for something that there is only in a request."""

    def __getattribute__(self, name: str) -> Any:
        raise Unasked


class Text(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise Unasked

    def __hash__(self) -> int:
        raise Unasked


@dataclasses.dataclass(slots=True)
class Guarded:
    """Its slots are there, and reading one is not."""

    rate: float = 2.0

    def __getattribute__(self, name: str) -> Any:
        raise Unasked


class Forwarding(nn.Module):
    """Looks for whatever it has not in a dict of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.more = nn.Linear(4, 3), {"rate": 2.0}

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__.get("_modules", {})
        return found[name] if name in found else self.__dict__["more"][name]

    def forward(self, x: T) -> T:
        return self.a(x) * self.rate


def _kept(value: Callable[[], Any]) -> Any:
    def script() -> Iterator[Any]:
        model = Lambda(lambda m, x: m.a(x) if m.kept is not None else x, a=nn.Linear(4, 3))
        vars(model)["kept"] = value()  # past torch, which asks for its class
        yield from train(model)

    return script


def _around(value: Callable[[], Any]) -> Any:
    def script() -> Iterator[Any]:
        variable = value()
        yield from train(Lambda(lambda m, x: m.a(x) if variable is not None else x, a=nn.Linear(4, 3)))

    return script


@dataclasses.dataclass
class Later:
    """What an encoder has made, and a place for what a decoder will."""

    x: T
    out: T = dataclasses.field(init=False)


class Fetched(Mapping[str, T]):
    """What it holds is asked for by name."""

    def __init__(self, x: T) -> None:
        self.x = x

    def __getitem__(self, key: str) -> T:
        return self.x

    def __iter__(self) -> Iterator[str]:
        raise Unasked

    def __len__(self) -> int:
        raise Unasked


class Unmeasured(Fetched):
    def __iter__(self) -> Iterator[str]:
        return iter(("x",))


def _given(kind: Callable[[T], Any], read: Callable[[Any], T]) -> Any:
    model = functools.partial(Lambda, lambda m, given: m.a(read(given)))
    return lambda: train(model(a=nn.Linear(4, 3)), call=lambda m, x, y: m(kind(x)))


class Rows(Dataset[Any]):
    def __init__(self, beside: Any) -> None:
        self.tensors, self.beside = data().tensors, beside

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Any:
        assert self.beside is not None
        return self.tensors[0][index], self.tensors[1][index]


def _loaded(value: Callable[[], Any]) -> Any:
    return lambda: train(nn.Linear(4, 3), batches=DataLoader(Rows(value()), 8, shuffle=True))


_SILENT = {
    kind.__name__: functools.partial(_silent(kind), items)
    for kind, items in (
        (list, [1, 2]),
        (tuple, [1, 2]),
        (set, [1, 2]),
        (collections.deque, [1, 2]),
        (dict, {"a": 1}),
    )
}
_OBJECTS = {
    **_SILENT,
    "irrep": lambda: Irrep((1, -1)),
    "text": lambda: Text("a"),
    "proxy": Proxy,
    "slots": Guarded,
}

HAZARDS = {
    **{f"{name} on the module": Hazard(_kept(value), "right") for name, value in _OBJECTS.items()},
    **{f"{name} in a variable": Hazard(_around(value), "right") for name, value in _OBJECTS.items()},
    **{f"{name} of the data set": Hazard(_loaded(value), "right") for name, value in _OBJECTS.items()},
    "irrep, in one piece": Hazard(_kept(lambda: Irrep((1, -1))), "whole"),
    "attributes that are elsewhere": Hazard(lambda: train(Forwarding()), "right"),
    "field that is not there yet": Hazard(_given(Later, lambda given: given.x), "whole"),
    "mapping that is not gone through": Hazard(_given(Fetched, lambda given: given["x"]), "right"),
    "mapping without a length": Hazard(_given(Unmeasured, lambda given: given["x"]), "right"),
}

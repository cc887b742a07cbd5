"""Books that a model's forward keeps in other things than plain objects: weak ones, libraries', functions."""

from __future__ import annotations

import configparser
import functools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from hazards.harness import D, Hazard, modelled, train

T = torch.Tensor
BOOK: Any = None


class Plain:
    """A count of calls and one of rows."""

    def __init__(self) -> None:
        self.calls = self.rows = 0

    def add(self, x: T) -> None:
        self.calls += 1
        self.rows += len(x)

    def read(self) -> Any:
        return self.calls, self.rows


class Behind(Plain):
    """What it leads to is kept here, too, or by somebody else."""

    def __init__(self, lead: Callable[[Any], Any], *, own: bool) -> None:
        kept = Plain()
        self.lead = lead(kept)
        if own:
            self.kept = kept
        else:
            _OWNERS.append(kept)

    def add(self, x: T) -> None:
        found = self.lead() if isinstance(self.lead, weakref.ref) else self.lead
        found.add(x)

    def read(self) -> Any:
        return (self.kept if hasattr(self, "kept") else _OWNERS[-1]).read()


_OWNERS: list[Any] = []


class Late(Plain):
    """Opened when it is first written to."""

    def __init__(self) -> None: ...

    @functools.cached_property
    def held(self) -> dict[str, list[int]]:
        return {"rows": []}

    def add(self, x: T) -> None:
        self.held["rows"].append(len(x))

    def read(self) -> Any:
        return list(self.held["rows"])


class Anew(Plain):
    """Another at every call."""

    def add(self, x: T) -> None:
        self.last = {"rows": [len(x)]}

    def read(self) -> Any:
        return self.last["rows"][0]


class OnModule(Plain):
    """A buffer that is replaced, and a number beside it."""

    def __init__(self) -> None:
        self.held = _Counter()

    def add(self, x: T) -> None:
        self.held.count(x)

    def read(self) -> Any:
        return int(self.held.rows), self.held.calls


class _Counter(nn.Module):
    rows: T

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def count(self, x: T) -> None:
        self.rows = self.rows + len(x)
        self.calls += 1


class Keeps(nn.Module):
    def __init__(self, book: Any) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.book = book

    def forward(self, x: T) -> T:
        self.book.add(x)
        return self.a(x)


class Names(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        BOOK.add(x)
        return self.a(x)


def _kept(make: Callable[[], Any]) -> Any:
    def script() -> Iterator[Any]:
        book = make()
        yield from train(Keeps(book), seen=book.read)

    return script


def _named(make: Callable[[], Any]) -> Any:
    def script() -> Iterator[Any]:
        global BOOK
        BOOK = make()
        yield from train(Names(), seen=BOOK.read)
        BOOK = None

    return script


class Child(nn.Module):
    """Knows its parent, which is no part of it."""

    def __init__(self, parent: Any) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.__dict__["parent"] = parent  # or a proxy would be taken for a part

    def forward(self, x: T) -> T:
        parent: Any = self.parent() if isinstance(self.parent, weakref.ref) else self.parent
        parent.calls += 1
        return self.a(x) * parent.scale


class Parent(nn.Module):
    def __init__(self, lead: Callable[[Any], Any]) -> None:
        super().__init__()
        self.calls, self.scale = 0, 2.0
        self.child = Child(lead(self))

    def forward(self, x: T) -> T:
        return self.child(x)


def _parent(lead: Callable[[Any], Any]) -> Any:
    def script() -> Iterator[Any]:
        model = Parent(lead)
        yield from train(model, seen=lambda: model.calls)

    return script


class Unpickled(nn.Module):
    """Leaves out of its copies what it can do without."""

    def __init__(self, *, joins_with: bool) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.joins_with = joins_with
        self.table: Any = torch.linspace(1, 2, 3, dtype=D)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "table": None}

    def forward(self, x: T) -> T:
        out = self.a(x)
        return out - out.mean(0) if (self.table is not None) == self.joins_with else out


class Reports(nn.Module):
    """Knows an object of a library, and may use it."""

    def __init__(self, to: Any, *, in_forward: bool) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.in_forward = in_forward
        self.__dict__["to_whom"] = weakref.proxy(to)

    def forward(self, x: T) -> T:
        if self.in_forward:
            self.to_whom.debug("called")
        return self.a(x) * 2


def _reporting(*, in_forward: bool) -> Any:
    def script() -> Iterator[Any]:
        to = logging.Logger("hazard")
        yield from train(Reports(to, in_forward=in_forward))
        del to

    return script


class AsksItsClass(Reports):
    def forward(self, x: T) -> T:
        if isinstance(self.to_whom, logging.Logger):
            x = x - x.mean(0)
        return self.a(x)


class Holder:
    """Keeps what it knows a step further away, and catches what it raises."""

    def __init__(self, to: Any) -> None:
        self.to, self.rows = weakref.proxy(to), 0

    def tell(self, x: T) -> None:
        try:
            self.to.debug("called")
            self.rows += len(x)
        except Exception:
            self.rows -= 1


class Tells(nn.Module):
    def __init__(self, to: Any) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.holder = Holder(to)

    def forward(self, x: T) -> T:
        self.holder.tell(x)
        return self.a(x)


def _asking_its_class() -> Iterator[Any]:
    to = logging.Logger("hazard")
    yield from train(AsksItsClass(to, in_forward=True))
    del to


def _telling() -> Iterator[Any]:
    to = logging.Logger("hazard")
    model = Tells(to)
    yield from train(model, seen=lambda: model.holder.rows)
    del to


class ByPart(nn.Module):
    """Knows its parts by what does not keep them alive."""

    def __init__(self, known: Callable[[Any], Any]) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.known = known(self.a)

    def forward(self, x: T) -> T:
        if self.known.get(self.a) == "center":
            x = x - x.mean(0)
        return self.a(x)


def _keyed(part: Any) -> Any:
    known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
    known[part] = "center"
    return known


class UpByTuple(nn.Module):
    def __init__(self, parent: Any) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.up = (weakref.ref(parent),)

    def forward(self, x: T) -> T:
        self.up[0]().calls += 1
        return self.a(x)


class OfTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.part = UpByTuple(self)

    def forward(self, x: T) -> T:
        return self.part(x)


def _of_tuple() -> Iterator[Any]:
    model = OfTuple()
    yield from train(model, seen=lambda: model.calls)


class Node:
    """Two ways to the same: as many paths as two to the power of its depth."""

    def __init__(self, depth: int) -> None:
        self.left: Any = Node(depth - 1) if depth else None
        self.right = self.left


class Chained(Plain):
    def add(self, x: T) -> None:
        self.last = [Node(40)]

    def read(self) -> Any:
        return len(self.last)


class Counting(logging.LoggerAdapter):  # type: ignore[type-arg]
    """The library's `log` calls what is here."""

    def __init__(self) -> None:
        super().__init__(logging.Logger("hazard"), {})
        self.calls = 0

    def process(self, msg: Any, kwargs: Any) -> Any:
        self.calls += 1
        return msg, kwargs


class ByAdapter(Plain):
    def __init__(self) -> None:
        self.held = Counting()

    def add(self, x: T) -> None:
        self.held.log(50, "called")

    def read(self) -> Any:
        return self.held.calls


class Settings(Plain):
    def __init__(self) -> None:
        self.held = configparser.ConfigParser()
        self.held["a"] = {"calls": "0"}

    def add(self, x: T) -> None:
        self.held["a"]["calls"] = str(int(self.held["a"]["calls"]) + 1)

    def read(self) -> Any:
        return self.held["a"]["calls"]


class Rate(Plain):
    """The learning rate of an optimizer, and the epochs of its schedule."""

    def __init__(self) -> None:
        self.held = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.held, float)

    def add(self, x: T) -> None:
        self.held.param_groups[0]["lr"] += 1
        self.schedule.last_epoch += 1

    def read(self) -> Any:
        return self.held.param_groups[0]["lr"], self.schedule.last_epoch


BOOKS: dict[str, Callable[[], Any]] = {
    "weak reference": lambda: Behind(weakref.ref, own=True),
    "weak proxy": lambda: Behind(weakref.proxy, own=True),
    "cached property": Late,
    "new at every call": Anew,
    "module": OnModule,
    "shared by many paths": Chained,
    "adapter of a logger": ByAdapter,
    "parser of settings": Settings,
    "learning rate": Rate,
}

HAZARDS = {
    **{f"{name}, kept": Hazard(_kept(make), "right") for name, make in BOOKS.items()},
    **{f"{name}, named": Hazard(_named(make), "right") for name, make in BOOKS.items()},
    "weak reference to a parent": Hazard(_parent(weakref.ref), "right"),
    "weak proxy of a parent": Hazard(_parent(weakref.proxy), "right"),
    "weak proxy of a library's, not used": Hazard(_reporting(in_forward=False), "right"),
    "weak proxy of a library's, used": Hazard(_reporting(in_forward=True), "right"),
    "weak proxy of a library's, asked for its class": Hazard(_asking_its_class, "right"),
    "weak proxy of a library's, in an object": Hazard(_telling, "right"),
    "part known by key": Hazard(modelled(lambda: ByPart(_keyed)), "parts", "depend on other rows"),
    "parent in a tuple": Hazard(_of_tuple, "right"),
    "joins rows without a table": Hazard(lambda: train(Unpickled(joins_with=False)), "whole"),
    "joins rows with a table": Hazard(lambda: train(Unpickled(joins_with=True)), "parts", ""),
}

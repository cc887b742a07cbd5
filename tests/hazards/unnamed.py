"""What a model's forward writes to without naming it: by a name made of text, a closure, an operator.

A trial must leave none of it as it made it, and see where it depends on the rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import hazards
from hazards.harness import Hazard, loader, train

T = torch.Tensor
CALLS: dict[str, int] = {"rows": 0, "calls": 0}
PARTS: dict[str, nn.Module] = {}
MODEL: Any = None


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        self.note(x)
        return self.a(x)

    def note(self, x: T) -> None:
        raise NotImplementedError


def _count(x: T) -> None:
    CALLS["calls"] += 1
    CALLS["rows"] += len(x)


def _counted() -> tuple[int, int]:
    return CALLS["calls"], CALLS["rows"]


class Centres(Base):
    def forward(self, x: T) -> T:
        from hazards.notebook import centred

        return self.a(centred(x))


class CentresByPackage(Base):
    """By a chain of modules."""

    def forward(self, x: T) -> T:
        return self.a(hazards.notebook.centred(x))


def _centred(make: Callable[[], nn.Module]) -> Any:
    def script() -> Iterator[Any]:
        importlib.import_module("hazards.notebook").clear()
        yield from train(make(), epochs=4)

    return script


class ByText(Base):
    mode = "train"

    def note(self, x: T) -> None:
        getattr(self, "_in_" + self.mode)(x)

    def _in_train(self, x: T) -> None:
        _count(x)


class ByKeptText(ByText):
    mode = "_in_train"

    def __init__(self) -> None:
        super().__init__()
        self.how = "_in_" + "train"

    def note(self, x: T) -> None:
        getattr(self, self.how)(x)


class Warms(Base):
    """Another branch from some call on, which is counted where no name leads."""

    def __init__(self) -> None:
        super().__init__()
        self.book = {"calls": 0}
        self.how = "train"

    def forward(self, x: T) -> T:
        return getattr(self, f"_in_{self.how}")(self.a(x))

    def _in_train(self, out: T) -> T:
        self.book["calls"] += 1
        return out - out.mean(0) if self.book["calls"] > 3 else out


class OverItself(Base):
    """A function of its own knows the model by a variable."""

    hidden: T

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.rows = 0, 0
        self.act = lambda x: self._noted(x)

    def _noted(self, x: T) -> None:
        self.calls += 1
        self.rows += len(x)
        self.hidden = self.a(x)

    def note(self, x: T) -> None:
        self.act(x)


class Registered(Base):
    def __init__(self) -> None:
        super().__init__()
        self.part = PARTS["part"] = nn.Identity()
        self.part.calls = 0  # type: ignore[assignment]

    def note(self, x: T) -> None:
        PARTS["part"].calls += 1  # type: ignore[operator, assignment]


class ByName(Base):
    """Its own global name."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: T) -> T:
        MODEL.scale *= 0.5
        return self.a(x) * MODEL.scale


class Appends(Base):
    def __init__(self) -> None:
        super().__init__()
        rows: list[int] = []
        self.keep = rows.append
        self.read = lambda: list(rows)

    def note(self, x: T) -> None:
        self.keep(len(x))


class Ledger:
    def __init__(self) -> None:
        self.rows = 0

    def __lshift__(self, rows: int) -> Ledger:
        self.rows += rows
        return self


LEDGERS = [Ledger() for _ in range(150)]


class ByOperator(Base):
    def note(self, x: T) -> None:
        LEDGERS[-1] << len(x)


class Shared:
    """Stays the same in copies."""

    def __init__(self) -> None:
        self.rows = 0

    def __deepcopy__(self, memo: Any) -> Shared:
        return self


class Shares(Base):
    def __init__(self) -> None:
        super().__init__()
        self.book = Shared()

    def note(self, x: T) -> None:
        self.book.rows += len(x)


def _trained(make: Callable[[], nn.Module], read: Callable[[Any], Any]) -> Any:
    def script() -> Iterator[Any]:
        global MODEL
        CALLS.update(rows=0, calls=0)
        LEDGERS[-1].rows = 0
        MODEL = make()
        yield from train(MODEL, seen=lambda: read(MODEL))
        MODEL = None

    return script


def _with_what_it_keeps() -> Iterator[Any]:
    """The loss has a term of what the model has left on itself."""
    torch.manual_seed(0)
    model = OverItself().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader():
        loss = F.cross_entropy(model(x), y) + model.hidden.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss, model.calls, model.rows
    yield from model.parameters()


HAZARDS = {
    "branch in a module that is imported in forward": Hazard(_centred(Centres), "right"),
    "branch in a module of a package": Hazard(_centred(CentresByPackage), "right"),
    "method by a name made of text": Hazard(_trained(ByText, lambda _: _counted()), "right"),
    "method by a name that is kept": Hazard(_trained(ByKeptText, lambda _: _counted()), "right"),
    "branch in a method by a name made of text": Hazard(_trained(Warms, lambda m: m.book["calls"]), "right"),
    "function that knows the model": Hazard(_trained(OverItself, lambda m: (m.calls, m.rows)), "right"),
    "function that keeps something on the model": Hazard(_with_what_it_keeps, "right"),
    "register of parts": Hazard(_trained(Registered, lambda _: PARTS["part"].calls), "right"),
    "model by its global name": Hazard(_trained(ByName, lambda m: m.scale), "right"),
    "method of a list": Hazard(_trained(Appends, lambda m: m.read()), "right"),
    "operator on one of many": Hazard(_trained(ByOperator, lambda _: LEDGERS[-1].rows), "right"),
    "book that copies share": Hazard(_trained(Shares, lambda m: m.book.rows), "right"),
}

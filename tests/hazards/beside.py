"""Threads of the script that go on while its main one is inside a model."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from hazards.harness import D, Hazard, data, loader

__all__ = ["HAZARDS", "MEANWHILE"]

T = torch.Tensor
GO, DONE = threading.Event(), threading.Event()
SEEN: list[float] = []


class Beside:
    """A thread that does some work whenever a model is in the midst of its forward."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.results: list[Any] = []
        self.ended = False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while GO.wait(60) and not self.ended:
            GO.clear()
            self.results.append(self.work())
            DONE.set()

    def __enter__(self) -> Beside:
        GO.clear()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        GO.set()
        self.thread.join()


def _meanwhile() -> None:
    DONE.clear()
    GO.set()
    assert DONE.wait(60)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: T) -> T:
        _meanwhile()
        return x + self.b(torch.relu(self.a(x)))


def _trained(work: Callable[[], Any], seen: Callable[[list[Any], int], Any]) -> Callable[[], Iterator[Any]]:
    """Three steps; each sees what the thread has done."""

    def script() -> Iterator[Any]:
        model = nn.Sequential(Block(), Block(), nn.Linear(4, 3)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with Beside(work) as beside:
            for step, (x, y) in enumerate([*loader(generator=torch.Generator())][:3]):
                loss = F.cross_entropy(model(x * (step + 1)), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss.item()
                yield seen(beside.results, step)

    return script


def _number(results: list[Any], step: int) -> Any:
    """The generator's numbers come in order, and each once, however often a model was called."""
    return results[step]


def _evaluated() -> Callable[[], Iterator[Any]]:
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True, dtype=D)
    other = nn.Sequential(nn.TransformerEncoder(layer, 1))
    norm = nn.BatchNorm1d(4, dtype=D)
    x, padding = torch.arange(40, dtype=D).view(2, 5, 4).sin(), torch.arange(5) >= torch.tensor([[3], [5]])

    def work() -> Any:
        encoder, here = copy.deepcopy(other).eval()[0], copy.deepcopy(norm)
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=padding), here(x[0]), here.running_mean

    return _trained(work, lambda results, _: results[-1])


def _trained_beside() -> Callable[[], Iterator[Any]]:
    def work() -> Any:
        model = nn.Sequential(nn.Linear(4, 3, dtype=D), nn.BatchNorm1d(3, dtype=D))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter).cos())
        optimizer = torch.optim.Adam(model.parameters())
        F.cross_entropy(model(torch.eye(4, dtype=D)), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    return _trained(work, lambda results, _: results[-1])


class Looks(nn.Module):
    """Looks at a list to which a thread appends."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        _meanwhile()
        return self.a(x) if SEEN else x[:, :3]


def _shared() -> Iterator[Any]:
    SEEN.clear()

    def work() -> None:
        SEEN.append(1.0)

    model = Looks().double()
    with Beside(work) as beside:
        for x, _ in loader():
            yield model(x)
            yield len(SEEN) - len(beside.results)


class ReadsAhead(Dataset[Any]):
    """A thread of its own makes samples, one after another."""

    def __init__(self) -> None:
        self.x, self.y = data().tensors
        self.made: dict[int, T] = {}
        self.asked = threading.Condition()
        self.thread = threading.Thread(target=self.make, daemon=True)
        self.thread.start()

    def make(self) -> None:
        for index in range(len(self)):
            with self.asked:
                self.made[index] = self.x[index] * 2
                self.asked.notify_all()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        with self.asked:
            assert self.asked.wait_for(lambda: index in self.made, 60)
        return self.made[index], self.y[index]


def _reads_ahead() -> Iterator[Any]:
    thread = threading.Thread(target=(stop := threading.Event()).wait, daemon=True)
    thread.start()
    model = nn.Linear(4, 3).double()
    for x, y in loader(dataset=ReadsAhead()):
        yield F.cross_entropy(model(x), y).item()
    stop.set()
    thread.join()


class AugmentedAtLast(Dataset[Any]):
    """Its samples begin to draw in the second epoch."""

    def __init__(self) -> None:
        self.x, self.y = data().tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index] * (1 if gc.isenabled() else random.random()), self.y[index]


class Augmented(AugmentedAtLast):
    def __getitem__(self, index: int) -> Any:
        return self.x[index] * (0.5 + random.random()) + np.random.rand(), self.y[index]


class AugmentedByTorch(AugmentedAtLast):
    def __getitem__(self, index: int) -> Any:
        return self.x[index] * torch.rand((), dtype=D), self.y[index]


def _augmented(make: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    """A thread is there, and idle."""

    def script() -> Iterator[Any]:
        model = nn.Linear(4, 3).double()
        with Beside(lambda: None):
            for x, y in [*loader(dataset=make()), *loader(dataset=make())]:
                yield F.cross_entropy(model(x), y).item()
        yield random.random(), np.random.rand(), torch.rand(()).item()

    return script


def _augmented_at_last() -> Iterator[Any]:
    batches = loader(dataset=AugmentedAtLast())
    with Beside(lambda: None):
        yield [x.sum().item() for x, _ in batches]
        gc.disable()
        try:
            yield [x.sum().item() for x, _ in batches]
        finally:
            gc.enable()


MEANWHILE = {
    "draws from torch's generator": _trained(lambda: torch.rand(()).item(), _number),
    "evaluates a model": _evaluated(),
    "trains a model": _trained_beside(),
}
HAZARDS = {
    **{name: Hazard(script, "whole") for name, script in MEANWHILE.items()},
    "changes what a model looks at": Hazard(_shared, "whole"),
    "is there when samples draw at last": Hazard(_augmented_at_last, "refused", "Use --loading full"),
    "is there when samples are augmented": Hazard(_augmented(Augmented), "right"),
    "is there when torch augments samples": Hazard(_augmented(AugmentedByTorch), "right"),
    "works for a dataset": Hazard(_reads_ahead, "right"),
}

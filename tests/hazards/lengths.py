"""Containers that grow: their length decides, or nothing asks for it; and functions with a cache."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from hazards.harness import D, Hazard, train

__all__ = ["HAZARDS"]

T = torch.Tensor
_MIXED = "rows of its output depend on other rows"
HISTORY: list[T] = []


class Memory:
    def __init__(self) -> None:
        self.items: list[T] = []

    def __len__(self) -> int:
        return len(self.items)

    def append(self, item: T) -> None:
        self.items.append(item)


class Keeping(nn.Module):
    """Adds the mean over the batch once it has been called so many times, as its bank tells."""

    def __init__(self, kept: Any, least: int) -> None:
        super().__init__()
        self.a, self.kept, self.least = nn.Linear(4, 3), kept, least

    def forward(self, x: T) -> T:
        self.kept.append(torch.zeros(2))
        h = self.a(x)
        return h + h.mean(0) if len(self.kept) > self.least else h


def _bank(make: Callable[[], Any], least: int, epochs: int = 2) -> Callable[[], Iterator[Any]]:
    def script() -> Iterator[Any]:
        model = Keeping(make(), least)
        yield from train(model, epochs=epochs, seen=lambda: len(model.kept))

    return script


class Writing(nn.Module):
    """Writes a history that it never asks for, and keeps a mask for each length."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.history = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 3)]), list[T]()
        self.widths, self.masks = [1.0, 2.0], dict[int, T]()

    def mask(self, size: int) -> T:
        if size not in self.masks:
            self.masks[size] = torch.full((1,), 1 / size, dtype=D)
        return self.masks[size]

    def forward(self, x: T, table: T) -> T:
        self.history.append(torch.ones(1))
        HISTORY.append(torch.ones(1))
        x = x * self.mask(len(table))
        for place in range(len(self.layers)):
            x = self.layers[place](x) / self.widths[place % len(self.widths)]
        return x


def _written() -> Iterator[Any]:
    HISTORY.clear()
    model, step = Writing(), iter(range(1000))
    yield from train(
        model,
        epochs=10,
        call=lambda m, x, y: m(x, torch.zeros(next(step) % 25 + 30)),
        seen=lambda: (len(HISTORY), len(model.history), len(model.masks)),
    )
    HISTORY.clear()


class Cached(nn.Module):
    def __init__(self, function: Callable[[Any, T], T]) -> None:
        super().__init__()
        self.a, self.function, self.made = nn.Linear(4, 3), function, 0

    @functools.lru_cache  # noqa: B019 - as users write it
    def table(self, size: int) -> T:
        self.made += 1
        return torch.linspace(0, 1, size, dtype=D)

    def forward(self, x: T) -> T:
        return self.a(self.function(self, x))


def _with_cache(
    make: Callable[[], tuple[Callable[[Any, T], T], Callable[[], Any]]],
) -> Callable[[], Iterator[Any]]:
    def script() -> Iterator[Any]:
        function, seen = make()
        model = Cached(function)
        yield from train(model, seen=lambda: (seen(), model.made))

    return script


def _drawn() -> Any:
    @functools.cache
    def projection(size: int) -> T:
        return torch.randn(size, size, dtype=D)

    return lambda m, x: x @ projection(x.shape[1]), lambda: projection(4)


def _told_of() -> Any:
    asked: list[int] = []

    @functools.lru_cache
    def mask(size: int) -> T:
        asked.append(size)
        return torch.linspace(0, 1, size, dtype=D)

    return lambda m, x: x * mask(x.shape[1]), lambda: (asked, mask.cache_info().currsize)


def _of_a_method() -> Any:
    Cached.table.cache_clear()
    return lambda m, x: x * m.table(4), lambda: Cached.table.cache_info().currsize > 0


def _by_rows() -> Any:
    @functools.cache
    def ones(rows: int) -> T:
        return torch.ones(rows, 1, dtype=D)

    return lambda m, x: x * ones(len(x)), lambda: None


class Masked(nn.Module):
    """Attention over steps, with a causal mask of which it takes as much as its input is long."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(1, 4), nn.Linear(4, 3)
        self.register_buffer("mask", torch.ones(1, 4, 4, dtype=D).tril())

    def forward(self, x: T) -> T:
        steps, h = x.shape[1], self.into(x.unsqueeze(-1))
        scores = (h @ h.transpose(1, 2)).masked_fill(self.mask[:, :steps, :steps] == 0, float("-inf"))
        return self.out(scores.softmax(-1) @ h)[:, -1]


def _of_some_lengths() -> Iterator[Any]:
    lengths = itertools.cycle([2, 4, 3, 4])  # torch leaves out a slice that takes all
    yield from train(Masked(), call=lambda model, x, y: model(x[:, : next(lengths)]))


class Anchored(nn.Module):
    """Makes its grid anew when the shape of its input changes, as heads of detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.shape, self.grid, self.made, self.out = None, torch.empty(0), 0, nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        if self.shape != x.shape:
            self.grid, self.shape, self.made = torch.linspace(0, 1, 3, dtype=D), x.shape, self.made + 1
        return self.out(x) + self.grid


def _with_its_shape() -> Iterator[Any]:
    model = Anchored()
    yield from train(model, seen=lambda: (tuple(model.shape), model.made))


HAZARDS = {
    "a bank": Hazard(_bank(list, 4), "parts", _MIXED),
    "a bank for long": Hazard(_bank(list, 25, epochs=10), "parts", _MIXED),
    "a memory of the script's": Hazard(_bank(Memory, 4), "parts", _MIXED),
    "histories and masks that nobody counts": Hazard(_written, "whole"),
    "a cached draw": Hazard(_with_cache(_drawn), "whole"),
    "a cached mask": Hazard(_with_cache(_told_of), "whole"),
    "a cached method": Hazard(_with_cache(_of_a_method), "whole"),
    "cached by rows": Hazard(_with_cache(_by_rows), "parts", "the number of rows"),
    "a kept shape": Hazard(_with_its_shape, "parts", "the number of rows"),
    "a mask of which as much is taken as the input is long": Hazard(_of_some_lengths, "whole"),
}

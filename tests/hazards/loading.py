"""Data sets whose samples are not a function of their index alone."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from hazards.harness import Hazard, data, train

T = torch.Tensor
UNUSED = torch.Generator().manual_seed(3)


class Rows(Dataset[Any]):
    """Rows through a transform."""

    def __init__(self, transform: Callable[[T], T] = lambda x: x) -> None:
        self.tensors, self.transform = data().tensors, transform

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.tensors[0][index]), self.tensors[1][index]


def _trained(make: Callable[[], Any], **options: Any) -> Any:
    def script() -> Iterator[Any]:
        batches = DataLoader(make(), 8, shuffle=True, **options)
        yield from train(nn.Linear(4, 3), batches=batches)
        yield from (x for x, _ in batches)

    return script


def _closure() -> Any:
    generator = np.random.default_rng(3)
    return Rows(lambda x: x + generator.random())


def _default() -> Any:
    generator = np.random.default_rng(3)

    def moved(x: T, source: Any = generator) -> T:
        return x + source.random()

    return Rows(moved)


def _partial() -> Any:
    def moved(source: Any, x: T) -> T:
        return x + source.random()

    return Rows(functools.partial(moved, random.Random(4)))


class Mover:
    def __init__(self) -> None:
        self.source = random.Random(5)

    def move(self, x: T) -> T:
        return x + self.source.random()


class Slotted:
    __slots__ = ("source",)

    def __init__(self) -> None:
        self.source = random.Random(5)

    def __call__(self, x: T) -> T:
        return x + self.source.random()


class Composed:
    def __init__(self, *steps: Callable[[T], T]) -> None:
        self.steps = steps

    def __call__(self, x: T) -> T:
        for step in self.steps:
            x = step(x)
        return x


def _deep() -> Any:
    generator = np.random.default_rng(3)

    def inner(x: T) -> T:
        return x + generator.random()

    def outer(x: T) -> T:
        return inner(x) * 2

    return Rows(Composed(lambda x: x, Composed(outer)))


def _torch_generator() -> Any:
    generator = torch.Generator().manual_seed(1)
    return Rows(lambda x: x + torch.randn(4, generator=generator))


class Counting(Rows):
    """A sample depends on how many were read before it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        x, y = super().__getitem__(index)
        return x * (1 + self.reads / 100), y


class Mosaic(Rows):
    """A sample is mixed with the one that was read before it, as some augmentations do."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Any = None

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        mixed = x if self.before is None else x + 0.1 * self.before
        self.before = x
        return mixed, y


class Remembering(Rows):
    """A cache of samples: each is always the same."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


class ByBatch(Rows):
    """Fetches a batch at once, and centres it."""

    def __getitems__(self, indices: list[int]) -> Any:
        x = self.tensors[0][indices]
        return list(zip(x - x.mean(0), self.tensors[1][indices], strict=True))


class UsedOnce(Rows):
    """A generator that only the constructor draws from."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.random.default_rng(3).permutation(len(self))

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(int(self.order[index]))


def _seed_worker(worker: int) -> None:
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed + worker)


def _noisy(x: T) -> T:
    return x + random.random() + float(np.random.rand())


DRAWN = random.random


def _noisy_by_name(x: T) -> T:
    return x + DRAWN()


def _epoch_set() -> Iterator[Any]:
    """The script tells the data set which epoch it is."""

    class ByEpoch(Rows):
        epoch = 0

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x * (1 + self.epoch), y

    dataset = ByEpoch()
    batches = DataLoader(dataset, 8, shuffle=True)
    for epoch in range(3):
        dataset.epoch = epoch
        yield from batches


def _loaders_generator() -> Iterator[Any]:
    """The recipe for reproducible loaders."""
    generator = torch.Generator().manual_seed(0)
    batches = DataLoader(Rows(), 8, shuffle=True, generator=generator, worker_init_fn=_seed_worker)
    yield from train(nn.Linear(4, 3), batches=batches)
    yield generator.get_state()


_DRAWS = "random"
HAZARDS = {
    "generator in a closure": Hazard(_trained(_closure), "parts", _DRAWS),
    "generator in a default": Hazard(_trained(_default), "parts", _DRAWS),
    "generator in a partial": Hazard(_trained(_partial), "parts", _DRAWS),
    "generator of a bound method": Hazard(_trained(lambda: Rows(Mover().move)), "parts", _DRAWS),
    "generator in slots": Hazard(_trained(lambda: Rows(Slotted())), "parts", _DRAWS),
    "generator deep inside": Hazard(_trained(_deep), "parts", _DRAWS),
    "torch generator in a closure": Hazard(_trained(_torch_generator), "parts", _DRAWS),
    "generator in a subset": Hazard(_trained(lambda: Subset(_closure(), range(20))), "parts", _DRAWS),
    "counter": Hazard(_trained(Counting), "parts", "changes reads"),
    "sample before": Hazard(_trained(Mosaic), "parts", "changes before"),
    "cache": Hazard(_trained(Remembering), "parts", "changes cache"),
    "batch at once": Hazard(_trained(ByBatch), "parts", ""),
    "batch at once in a subset": Hazard(_trained(lambda: Subset(ByBatch(), range(20))), "parts", ""),
    "generator used once": Hazard(_trained(UsedOnce), "whole"),
    "seeded workers": Hazard(
        _trained(lambda: Rows(_noisy), num_workers=2, worker_init_fn=_seed_worker), "parts", _DRAWS
    ),
    "global random": Hazard(_trained(lambda: Rows(_noisy)), "parts", _DRAWS),
    "global random by the name of its method": Hazard(
        _trained(lambda: Rows(_noisy_by_name)), "parts", "its samples draw random numbers"
    ),
    "collate of the user's": Hazard(
        _trained(
            Rows,
            collate_fn=lambda rows: (torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])),
        ),
        "parts",
        "collate",
    ),
    "epoch set by the script": Hazard(_epoch_set, "right"),
    "loader's generator": Hazard(_loaders_generator, "whole"),
}

"""What a data set holds is known by name, whatever it hangs on, and nothing of it is called by looking."""

from __future__ import annotations

import functools
import io
import queue
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ronde.batches.dataset_snapshot import DatasetSnapshot

COUNTS: dict[str, int] = {}


def _named() -> None:
    COUNTS["all"] = COUNTS.get("all", 0) + 1


class Slotted:
    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class Samples:
    """Keeps books in many ways."""

    shared: dict[str, int] = {}  # noqa: RUF012 - one for all, as classes keep caches

    def __init__(self) -> None:
        self.count, self.last = 0, None
        self.seen, self.array = torch.zeros(3), np.zeros(3)
        self.nested = {"a": [set[int]()]}
        self.slots = Slotted()
        self.opened: Any = None
        around: list[int] = []
        self.transform = functools.partial(lambda x, y: around.append(x), 1)

    def named(self) -> None:
        _named()


CHANGES: dict[str, tuple[Callable[[Samples], Any], str]] = {
    "nothing": (lambda s: s.count, ""),
    "number": (lambda s: setattr(s, "count", 1), "count"),
    "tensor": (lambda s: s.seen.add_(1), "seen"),
    "array": (lambda s: s.array.fill(1), "array"),
    "deep inside": (lambda s: s.nested["a"][0].add(1), "nested"),
    "slots": (lambda s: setattr(s.slots, "number", 1), "slots"),
    "an attribute more": (lambda s: setattr(s, "more", 1), "more"),
    "closure": (lambda s: s.transform(2), "around"),
    "global variable": (lambda s: s.named(), "COUNTS"),
    "class": (lambda s: s.shared.update(a=1), "shared"),
    "a file is opened": (lambda s: setattr(s, "opened", io.StringIO("a")), ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_has_changed_has_a_name(name: str) -> None:
    change, expected = CHANGES[name]
    samples = Samples()
    held = DatasetSnapshot(samples)
    assert held.changed() == ""
    change(samples)
    assert held.changed() == expected
    Samples.shared.clear()
    COUNTS.clear()


GENERATORS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "python": (random.Random(1), lambda g: g.random()),
    "numpy": (np.random.default_rng(1), lambda g: g.random()),
    "numpy, old": (np.random.RandomState(1), lambda g: g.rand()),
    "torch": (torch.Generator(), lambda g: torch.rand(1, generator=g)),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_of_its_own_are_found(name: str) -> None:
    generator, draw = GENERATORS[name]
    samples = Samples()
    samples.transform = functools.partial(draw, [generator])  # type: ignore[assignment]
    held = DatasetSnapshot(samples)
    assert not held.drew()
    random.random()  # everybody's
    assert not held.drew()
    draw(generator)
    assert held.drew()


def test_what_is_given_once_and_files_are_found() -> None:
    samples: Any = Samples()
    assert not DatasetSnapshot(samples).gives_once
    assert DatasetSnapshot([samples, queue.Queue()]).gives_once
    assert DatasetSnapshot([samples, iter([1])]).gives_once
    file = io.StringIO("a")
    assert DatasetSnapshot([samples, file]).files == [file]


class Proxy:
    """Stands for something that is not there yet."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not yet")


def test_an_object_that_cannot_be_asked_is_passed_over() -> None:
    samples: Any = Samples()
    samples.proxy = Proxy()
    held = DatasetSnapshot(samples)
    samples.count = 1
    assert held.changed() == "count"

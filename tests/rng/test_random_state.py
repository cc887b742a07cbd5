"""Generators of the process are left as they were, but for what other threads draw from them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ronde.rng.random_state import preserved_random_state

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": np.random.rand,
    "torch": lambda: torch.rand(()).item(),
}


def _seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _beside(draw: Callable[[], Any], inside: Callable[[], Any]) -> list[Any]:
    """What a thread draws before, within and after a piece in which generators are preserved."""
    _seeded()
    drawn: list[Any] = []
    turns = [threading.Event() for _ in range(3)]
    done = [threading.Event() for _ in range(3)]

    def work() -> None:
        for turn, end in zip(turns, done, strict=True):
            assert turn.wait(60)
            drawn.append(draw())
            end.set()

    def let(place: int) -> None:
        turns[place].set()
        assert done[place].wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    let(0)
    with preserved_random_state():
        inside()
        let(1)
    let(2)
    thread.join()
    return drawn


@pytest.mark.parametrize("name", DRAWS)
def test_what_a_thread_draws_stays_drawn(name: str) -> None:
    drawn = _beside(DRAWS[name], lambda: None)
    _seeded()
    assert drawn == [DRAWS[name]() for _ in range(3)]


def test_torchs_generator_is_put_back_where_this_thread_drew() -> None:
    drawn = _beside(random.random, lambda: torch.rand(5))
    found = torch.rand(()).item()
    _seeded()
    assert found == torch.rand(()).item()
    assert drawn == [random.random() for _ in range(3)]


@pytest.mark.parametrize("name", DRAWS)
def test_alone_all_are_put_back(name: str) -> None:
    _seeded()
    with preserved_random_state():
        DRAWS[name]()
    found = DRAWS[name]()
    _seeded()
    assert found == DRAWS[name]()

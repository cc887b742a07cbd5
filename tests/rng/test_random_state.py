"""Generators of the process are left as they were, but for what other threads draw from them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ronde.rng.random_state import HOSTS, NUMPYS, PYTHONS, preserved_random_state

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": np.random.rand,
    "torch": lambda: torch.rand(()).item(),
}
HOST = {"python": PYTHONS, "numpy": NUMPYS}
assert frozenset(HOST.values()) == HOSTS


def _seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _beside(draw: Callable[[], Any], inside: Callable[[], Any], **options: Any) -> list[Any]:
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
    with preserved_random_state(**options):
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


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_the_others_are_put_back_for_code_that_draws(name: str) -> None:
    draw = DRAWS[name]
    first, within, after = _beside(draw, draw, hosts=frozenset((HOST[name],)))
    _seeded()
    numbers = [draw() for _ in range(3)]
    assert (first, within) == (numbers[0], numbers[2])
    assert after == numbers[1]


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_of_code_that_draws_from_one_a_threads_draws_from_the_other_stay(name: str) -> None:
    other = "numpy" if name == "python" else "python"
    drawn = _beside(DRAWS[other], DRAWS[name], hosts=frozenset((HOST[name],)))
    found = DRAWS[name]()
    _seeded()
    assert drawn == [DRAWS[other]() for _ in range(3)]
    assert found == DRAWS[name]()


@pytest.mark.parametrize("name", DRAWS)
def test_alone_all_are_put_back(name: str) -> None:
    _seeded()
    with preserved_random_state():
        DRAWS[name]()
    found = DRAWS[name]()
    _seeded()
    assert found == DRAWS[name]()

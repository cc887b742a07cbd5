"""Every draw from Python's or numpy's global generator is noticed, and nothing else is taken for one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ronde.rng.host_generators import HostGenerators

RANDOM: Any = np.random  # whose stubs do not know all of it

DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "a bit": lambda: random.getrandbits(1),
    "gauss": lambda: random.gauss(0, 1),
    "seed": lambda: random.seed(3),
    "as many as there are words": lambda: [random.getrandbits(32) for _ in range(624)],
    "numpy": np.random.rand,
    "numpy normal": np.random.randn,
    "numpy integers": lambda: np.random.randint(2),
    "numpy seed": lambda: np.random.seed(3),
    "numpy, as many as there are words": lambda: np.random.rand(312),
}


@pytest.fixture(autouse=True)
def states() -> Iterator[None]:
    python, numbers, source = random.getstate(), np.random.get_state(), RANDOM.get_bit_generator()
    yield
    RANDOM.set_bit_generator(source)
    np.random.set_state(numbers)
    random.setstate(python)


@pytest.mark.parametrize("name", DRAWS)
def test_each_of_several_draws_is_noticed(name: str) -> None:
    """Normal numbers come in pairs: the second is drawn without the generator."""
    generators = HostGenerators()
    for _ in range(5):
        before = generators.state()
        assert not generators.moved(before, generators.state())
        DRAWS[name]()
        noticed = bool(generators.moved(before, generators.state()))
        # What is seeded alike again has not moved.
        assert noticed or name.endswith("seed")
        if name.endswith("seed"):
            random.random()
            np.random.rand()


def test_a_draw_taken_back_is_none() -> None:
    generators = HostGenerators()
    before = generators.state()
    python, numbers = random.getstate(), np.random.get_state()
    random.random()
    np.random.rand()
    assert generators.moved(before, generators.state())
    random.setstate(python)
    np.random.set_state(numbers)
    assert not generators.moved(before, generators.state())


def test_another_generator_of_numpy_is_watched_too() -> None:
    generators = HostGenerators()
    before = generators.state()
    RANDOM.set_bit_generator(np.random.PCG64(1))
    other = generators.state()
    assert generators.moved(before, other)
    assert not generators.moved(other, generators.state())
    np.random.rand()
    assert generators.moved(other, generators.state())


def test_what_has_not_moved_is_not_copied() -> None:
    generators = HostGenerators()
    random.seed(0)
    np.random.seed(0)
    first, second = generators.state(), generators.state()
    assert first[0] is second[0]
    assert first[1] is second[1]

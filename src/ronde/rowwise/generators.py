"""States of random generators, and the way back to them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

__all__ = ["GENERATORS", "Generators"]

GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)


class Generators:
    """States of torch's, Python's and numpy's generators, and of others.

    Args:
        others: such as a module keeps.
    """

    def __init__(self, others: Iterable[Any] = ()) -> None:
        self._others = list(others)
        own = [random._inst, numpy.random.mtrand._rand]  # pyright: ignore[reportAttributeAccessIssue]
        self._torchs = [(each, each.get_state()) for each in _torchs()]
        self._states = [(each, _state(each)) for each in (*own, *self._others)]

    def now(self) -> Generators:
        """The same generators as they are now."""
        return Generators(self._others)

    def others_moved(self) -> bool:
        """Whether one was drawn from that is not torch's own."""
        return not all(_is_same(_state(each), state) for each, state in self._states)

    def restore(self) -> None:
        for each, state in (*self._torchs, *self._states):
            _set_state(each, state)


def _torchs() -> Iterator[torch.Generator]:
    yield torch.default_generator
    if torch.cuda.is_initialized():
        yield torch.cuda.default_generators[torch.cuda.current_device()]


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _is_same(state: Any, other: Any) -> bool:
    if isinstance(state, torch.Tensor):
        return torch.equal(state, other)
    if isinstance(state, numpy.ndarray):
        return numpy.array_equal(state, other)
    if isinstance(state, dict):
        return all(_is_same(value, other[key]) for key, value in state.items())
    if isinstance(state, tuple):
        return all(map(_is_same, state, other))
    return state == other

"""Saved states of the random generators from which a module's call may draw."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from ronde.rng.device_states import device_generator

__all__ = ["GENERATORS", "States"]

GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
# The global generators of Python and numpy.
_HOSTS = (random._inst, numpy.random.mtrand._rand)  # pyright: ignore[reportAttributeAccessIssue]


class States:
    """The saved states of some generators."""

    def __init__(self, generators: Iterable[Any]) -> None:
        self._states = [(each, _state(each)) for each in generators]

    @staticmethod
    def of_hosts(others: Iterable[Any]) -> States:
        """Save the global generators of Python and numpy, and others."""
        return States((*_HOSTS, *others))

    @staticmethod
    def of_torch(others: Iterable[Any]) -> States:
        """Save torch's default generators, and others."""
        return States((*_torchs(), *others))

    def moved(self) -> bool:
        """Return whether a generator has drawn since its state was saved."""
        return any(_told(_state(each)) != _told(state) for each, state in self._states)

    def now(self) -> States:
        """Save the present states of the same generators."""
        return States([each for each, _ in self._states])

    def restore(self) -> None:
        for each, state in self._states:
            _set_state(each, state)


def _torchs() -> Iterator[torch.Generator]:
    yield torch.default_generator
    on_device = device_generator()
    if on_device is not None:
        yield on_device


def _state(generator: Any) -> Any:
    if isinstance(generator, (torch.Generator, numpy.random.RandomState)):
        return generator.get_state()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def _told(state: Any) -> Any:
    """Return a state in comparable form."""
    return state.tolist() if isinstance(state, torch.Tensor) else pickle.dumps(state)


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)

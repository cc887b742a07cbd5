"""States of the default generators of a process, and detection of draws.

Other threads of a script may draw at any moment: one that reads a loader ahead augments its samples. Their
draws must neither be undone nor be counted for another thread. Torch's draws are told apart by thread, draws
from Python's and numpy's generators are not: these generators are restored only without other threads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch

from ronde.patching.other_threads import others_run
from ronde.patching.torch_internals import TorchDispatchMode
from ronde.rng.by_parts import carry_out, takes_functions
from ronde.rng.device_states import device_states, set_device_states
from ronde.rng.draws import draws_from_default

__all__ = ["DrawDetector", "have_moved", "host_states", "preserved_random_state", "put_back"]


def host_states() -> tuple[Any, Any]:
    """Return the states of Python's and numpy's generators."""
    return random.getstate(), numpy.random.get_state(legacy=False)


def put_back(states: tuple[Any, Any]) -> None:
    """Restore the states of Python's and numpy's generators."""
    random.setstate(states[0])
    numpy.random.set_state(states[1])


def have_moved(before: tuple[Any, Any], now: tuple[Any, Any]) -> bool:
    """Return whether Python's or numpy's generator is in another state."""
    (python, a), (other, b) = before, now
    return python != other or not _same_numpy(a, b)


def _same_numpy(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if a["bit_generator"] != b["bit_generator"] or a["has_gauss"] != b["has_gauss"]:
        return False
    return all(numpy.array_equal(a["state"][name], b["state"][name]) for name in a["state"])


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore every generator on exit, except for draws of other threads."""
    alone = not others_run()
    devices = device_states()
    hosts, state, drawn = host_states(), torch.get_rng_state(), DrawDetector()
    try:
        with nullcontext() if alone else drawn:
            yield
    finally:
        if alone:
            put_back(hosts)
        if alone or drawn.any:
            torch.set_rng_state(state)
            set_device_states(devices)


class DrawDetector(TorchDispatchMode):
    """Mode that detects draws of this thread from torch's default generators."""

    supports_higher_order_operators = True
    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if takes_functions(func):
            return carry_out(self, func, args, kwargs)
        self.any = self.any or draws_from_default(func, args, kwargs)
        return func(*args, **(kwargs or {}))

"""The generators from which everything in a process draws: their states, and who has moved them.

Other threads of a script may draw at any moment: one that reads a loader ahead augments its samples. What
they drew must neither be undone nor be taken for what a model drew. Torch's draws are told by thread. Those
from Python's and numpy's generators are not: while other threads are there, code is taken to make them if it
names what does, from the one that it names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ronde.patching.other_threads import others_run
from ronde.rng.by_parts import carry_out, takes_functions
from ronde.rng.draws import draws_from_default

__all__ = [
    "HOSTS",
    "NUMPYS",
    "PYTHONS",
    "Drawn",
    "Hosts",
    "host_states",
    "moved_hosts",
    "preserved_random_state",
    "put_back",
    "torch_states",
]


PYTHONS, NUMPYS = "Python's", "numpy's"
HOSTS = frozenset((PYTHONS, NUMPYS))


def torch_states() -> list[torch.Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def host_states() -> tuple[Any, Any]:
    """Of Python's and numpy's."""
    return random.getstate(), numpy.random.get_state(legacy=False)


def moved_hosts(before: tuple[Any, Any], now: tuple[Any, Any]) -> frozenset[str]:
    """Which of Python's and numpy's generators are in another state."""
    (python, a), (other, b) = before, now
    return frozenset(
        name for name, moved in ((PYTHONS, python != other), (NUMPYS, not _same_numpy(a, b))) if moved
    )


def put_back(states: tuple[Any, Any], hosts: frozenset[str]) -> None:
    """Of Python's and numpy's generators those that are named in `hosts`."""
    if PYTHONS in hosts:
        random.setstate(states[0])
    if NUMPYS in hosts:
        numpy.random.set_state(states[1])


def _same_numpy(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if a["bit_generator"] != b["bit_generator"] or a["has_gauss"] != b["has_gauss"]:
        return False
    return all(numpy.array_equal(a["state"][name], b["state"][name]) for name in a["state"])


class Hosts:
    """Python's and numpy's generators as they were; to read a state takes as long as much else in a trial."""

    def __init__(self) -> None:
        self._before = host_states()
        self._stayed = False

    def moved(self) -> frozenset[str]:
        """Which of them are in another state by now; to be asked when nothing draws any more."""
        moved = moved_hosts(self._before, host_states())
        self._stayed = not moved
        return moved

    def put_back(self, hosts: frozenset[str]) -> None:
        """Those that are named in `hosts`, unless `moved` has just found them where they were."""
        if not self._stayed:
            put_back(self._before, hosts)


@contextmanager
def preserved_random_state(hosts: frozenset[str] = frozenset()) -> Iterator[Hosts]:
    """Leave every generator as it was, but for what other threads draw.

    Args:
        hosts: of Python's and numpy's generators, those from which what runs in here may draw.
    """
    alone = not others_run()
    host, states, drawn = Hosts(), torch_states(), Drawn()
    try:
        with nullcontext() if alone else drawn:
            yield host
    finally:
        host.put_back(HOSTS if alone else hosts)
        if alone or drawn.any:
            torch.set_rng_state(states[0])
            torch.cuda.set_rng_state_all(states[1:])


class Drawn(TorchDispatchMode):
    """Whether this thread draws from torch's generators."""

    supports_higher_order_operators = True
    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if takes_functions(func):
            return carry_out(self, func, args, kwargs)
        self.any = self.any or draws_from_default(func, args, kwargs)
        return func(*args, **(kwargs or {}))

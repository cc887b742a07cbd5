"""The generators from which everything in a process draws: their states, and who has moved them.

Other threads of a script may draw at any moment: one that reads a loader ahead augments its samples. What
they drew must neither be undone nor be taken for what a model drew. Torch's draws are told by thread. Those
from Python's and numpy's generators are not: while other threads are there, code is taken to make them if it
names what does.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ronde.boundary.other_threads import others_run
from ronde.boundary.randomness import draws_from_default
from ronde.boundary.reach import GENERATORS, Reach, is_users, names_in

__all__ = [
    "Drawn",
    "host_states",
    "may_draw_on_host",
    "names_draws",
    "preserved_random_state",
    "same_states",
    "torch_states",
]

# Of functions and modules that draw from a generator of the process, or set one.
_DRAWING = {
    "random",
    "check_random_state",
    "rvs",
    "manual_seed",
    "set_rng_state",
    "fork_rng",
    "default_generator",
}
# Packages whose objects draw from none of these unless that is named.
_STILL = {"builtins", "torch", "numpy", "collections", "functools", "types", "threading", "queue", "_thread"}


def torch_states() -> list[torch.Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def host_states() -> tuple[Any, Any]:
    """Of Python's and numpy's."""
    return random.getstate(), numpy.random.get_state(legacy=False)


def same_states(before: tuple[Any, Any], now: tuple[Any, Any]) -> bool:
    """Of Python's and numpy's."""
    (python, a), (other, b) = before, now
    if python != other or a["bit_generator"] != b["bit_generator"] or a["has_gauss"] != b["has_gauss"]:
        return False
    return all(numpy.array_equal(a["state"][name], b["state"][name]) for name in a["state"])


@contextmanager
def preserved_random_state(draws_on_host: bool = False) -> Iterator[None]:
    """Leave every generator as it was, but for what other threads draw.

    Args:
        draws_on_host: what runs in here may draw from Python's or numpy's generator.
    """
    alone = not others_run()
    host, states, drawn = host_states(), torch_states(), Drawn()
    try:
        with nullcontext() if alone else drawn:
            yield
    finally:
        if alone or draws_on_host:
            random.setstate(host[0])
            numpy.random.set_state(host[1])
        if alone or drawn.any:
            torch.set_rng_state(states[0])
            torch.cuda.set_rng_state_all(states[1:])


class Drawn(TorchDispatchMode):
    """Whether this thread draws from torch's generators."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = self.any or draws_from_default(func, args, kwargs)
        return func(*args, **(kwargs or {}))


def names_draws(reach: Reach) -> bool:
    """Whether what was reached names what draws from Python's or numpy's generator, or is a library's."""
    kinds = {type(value) for _, value in reach.values}
    foreign = (kind.__module__.partition(".")[0] not in _STILL for kind in kinds if not is_users(kind))
    return _names_draws(reach) or any(foreign)


def _names_draws(reach: Reach) -> bool:
    bound = any(isinstance(getattr(value, "__self__", None), GENERATORS) for _, value in reach.values)
    return bound or not _DRAWING.isdisjoint(reach.names)


def may_draw_on_host(module: torch.nn.Module, reach: Reach) -> bool:
    """Whether the code of a module names what draws from Python's or numpy's generator.

    Args:
        reach: of the module: all that code of the user's reaches. Of a library all is looked at that stands
            beside a class.
    """
    kinds = {type(part) for part in module.modules()}
    return _names_draws(reach) or any(map(_library_names_draws, kinds))


@functools.lru_cache(maxsize=4096)
def _library_names_draws(kind: type) -> bool:
    owners = (owner for owner in kind.__mro__ if not is_users(owner))
    modules = {
        owner.__module__ for owner in owners if not owner.__module__.startswith(("torch.", "builtins"))
    }
    return any(not _DRAWING.isdisjoint(_names_of_module(module)) for module in modules)


@functools.lru_cache(maxsize=4096)
def _names_of_module(name: str) -> frozenset[str]:
    """Names that functions of a module use, and the methods of its classes."""
    everything = vars(sys.modules.get(name, types)).values()
    held = [item for item in everything if getattr(item, "__module__", None) == name]
    held += [item for kind in held if isinstance(kind, type) for item in vars(kind).values()]
    functions = (getattr(item, "__func__", item) for item in held)
    return frozenset[str]().union(
        *(names_in(each.__code__) for each in functions if isinstance(each, types.FunctionType))
    )

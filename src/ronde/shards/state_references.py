"""Detection of references that a script holds to an optimizer's state."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ronde.comm.buffer import references

__all__ = ["state_is_held"]


def state_is_held(optimizer: Any) -> bool:
    """Return whether a script refers to the state, its entries, tensors or memory.

    The caller must not hold a reference to any of them. A count of steps is passed over: where a checkpoint
    lies on another device, the count is the only value that `load_state_dict` takes without a copy.
    """
    nobody = SimpleNamespace(state={0: {0: torch.empty(1)}})
    counts = zip(_most_references(optimizer), _most_references(nobody), strict=True)
    return any(found > alone for found, alone in counts)


def _most_references(owner: Any) -> Iterator[int]:
    """Yield the largest numbers of references to each kind of object of the state.

    These are the state, an entry, a tensor in one, its memory, and the object that represents such memory.
    These functions' own references are the same for all.
    """
    state = vars(owner)["state"]
    yield sys.getrefcount(state)
    yield max((sys.getrefcount(entry) for entry in state.values()), default=0)
    yield max((sys.getrefcount(value) for value in _tensors(state)), default=0)
    # Aliases of the memory (`detach()`, `data`, `numpy()`) do not refer to the tensor object.
    lying = Counter(memory._cdata for memory in _memories(state))
    yield max((references(memory) - lying[memory._cdata] for memory in _memories(state)), default=0)
    yield max((sys.getrefcount(memory) for memory in _memories(state)), default=0)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    for entry in state.values():
        for value in entry.values() if isinstance(entry, dict) else ():
            if isinstance(value, torch.Tensor) and value.dim():
                yield value


def _memories(state: Any) -> Iterator[Any]:
    for value in _tensors(state):
        if value.layout is torch.strided:
            yield value.untyped_storage()

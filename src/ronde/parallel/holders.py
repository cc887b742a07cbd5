"""Whether a script holds on to what it read of an optimizer's state."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["state_is_held"]


def state_is_held(optimizer: Any) -> bool:
    """Whether there is another reference to the state, to an entry of it, or to a tensor in one.

    The caller must have no name for any of them. A count of steps is passed over: where a checkpoint lies on
    another device, it is all that `load_state_dict` takes as it is.
    """
    nobody = SimpleNamespace(state={0: {0: torch.empty(1)}})
    return _most_references(optimizer) > _most_references(nobody)


def _most_references(owner: Any) -> int:
    """To the state and what is in it; what this function itself adds is the same for all."""
    state = vars(owner)["state"]
    most = sys.getrefcount(state)
    for entry in state.values():
        most = max(most, sys.getrefcount(entry))
        for value in entry.values() if isinstance(entry, dict) else ():
            if isinstance(value, torch.Tensor) and value.dim():
                most = max(most, sys.getrefcount(value))
    return most

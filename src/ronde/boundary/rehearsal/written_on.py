"""What is written on a tensor, as a trial needs it."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch

from ronde.boundary.contents import contents
from ronde.boundary.kept import picture
from ronde.tensor.tensor_class import own_class, written

__all__ = ["copied", "described", "settings"]


def described(value: Any) -> Any:
    """A tensor's class and a picture of what is written on it, as something to compare."""
    if not isinstance(value, torch.Tensor):
        return None
    kind, found = own_class(value), written(value)
    return (kind and kind.__qualname__, picture(found) if found else None)


def settings(value: torch.Tensor, names: Collection[str]) -> tuple[tuple[str, Any], ...] | None:
    """What is written on a tensor under names that a model's code uses, as something to compare."""
    found = written(value)
    return tuple((name, contents(item)) for name, item in found.items() if name in names) if found else None


def copied(value: torch.Tensor) -> dict[str, Any]:
    """What is written on a tensor, of its own where that can be had."""
    return {name: _copied(item) for name, item in written(value).items()}


def _copied(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return item.detach().clone()
    try:
        return copy.deepcopy(item)
    except Exception:  # an object's own, or a tensor in the midst of a graph inside
        return item

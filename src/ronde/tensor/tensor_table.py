"""A weak map from tensors to values, by identity."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch

__all__ = ["TensorTable"]

V = TypeVar("V")


class TensorTable(Generic[V]):
    """Maps tensors to values for as long as each tensor lives.

    Tensors compare element by element, so they cannot be keys of a dict. A look-up is one of the first things
    that each operation on a parameter in shards does: so it costs a dict's look-up and a comparison.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, tensor: object) -> bool:
        found = self._entries.get(id(tensor))
        return found is not None and found[0]() is tensor

    def get(self, tensor: object) -> V | None:
        """Return the value of a tensor; None for an unknown one."""
        found = self._entries.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def set(self, tensor: torch.Tensor, value: V) -> None:
        key = id(tensor)
        known = self._entries.get(key)
        ref = known[0] if known is not None and known[0]() is tensor else self._ref(tensor, key)
        self._entries[key] = ref, value

    def pop(self, tensor: object) -> V | None:
        """Forget a tensor, and return its value."""
        value = self.get(tensor)
        if tensor in self:
            del self._entries[id(tensor)]
        return value

    def clear(self) -> None:
        self._entries.clear()

    def items(self) -> Iterator[tuple[torch.Tensor, V]]:
        """Yield living tensors with their values, in the order of insertion."""
        for ref, value in list(self._entries.values()):
            tensor = ref()
            if tensor is not None:
                yield tensor, value

    def values(self) -> Iterator[V]:
        """Iterate over values of living tensors, in the order of insertion."""
        return (value for _, value in self.items())

    def _ref(self, tensor: torch.Tensor, key: int) -> weakref.ref[torch.Tensor]:
        def gone(ref: weakref.ref[torch.Tensor]) -> None:
            found = self._entries.get(key)
            if found is not None and found[0] is ref:
                del self._entries[key]

        return weakref.ref(tensor, gone)

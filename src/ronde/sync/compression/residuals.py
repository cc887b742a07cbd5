"""State of compressors per gradient: residuals, velocities, factors."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ronde.sync.leaf import Leaf

__all__ = ["ResidualStore"]


class ResidualStore:
    """Tensors by leaf and kind, which outlive the buckets that use them."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Leaf, int] = weakref.WeakKeyDictionary()
        self._of: dict[str, weakref.WeakKeyDictionary[Leaf, torch.Tensor]] = {}
        self._loaded: dict[str, torch.Tensor] = {}

    def number(self, leaf: Leaf) -> int:
        """Return the number of a leaf, in the order of first requests.

        It is the same on all ranks.
        """
        return self._numbers.setdefault(leaf, len(self._numbers))

    def flat(self, kind: str, leaves: Sequence[Leaf]) -> torch.Tensor:
        """Create one flat tensor with the state of these leaves, end to end.

        State that does not exist yet is zero. From now on the stored tensors of these leaves are views of it.
        """
        sizes = [leaf.shape.numel() for leaf in leaves]
        made = torch.zeros(sum(sizes), dtype=leaves[0].dtype, device=leaves[0].device)
        for leaf, view in zip(leaves, made.split(sizes), strict=True):
            self.put(kind, leaf, view)
        return made

    def put(self, kind: str, leaf: Leaf, tensor: torch.Tensor) -> None:
        """Store `tensor`, filled with the values stored before or loaded."""
        of = self._of.setdefault(kind, weakref.WeakKeyDictionary())
        before = self._loaded.pop(f"{kind}.{self.number(leaf)}", None)
        before = of.get(leaf) if before is None else before
        if before is not None and before.numel() == tensor.numel():
            tensor.copy_(before.view_as(tensor))
        of[leaf] = tensor

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors, by kind and the leaf's number: "residual.0"."""
        return {
            f"{kind}.{self._numbers[leaf]}": tensor.detach().clone()
            for kind, of in self._of.items()
            for leaf, tensor in of.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`.

        Values of unknown leaves are used when these leaves are first stored.
        """
        self._loaded = dict(state)
        for kind, of in self._of.items():
            for leaf, tensor in list(of.items()):
                self.put(kind, leaf, tensor)

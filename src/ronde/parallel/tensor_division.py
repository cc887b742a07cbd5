"""Who has which block of a parameter, and which parameters of a model are cut into blocks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from ronde.parallel.division import Division, in_equal_parts
from ronde.parallel.tensor_cut import TensorCut
from ronde.parallel.tensor_structure import Placement, placements
from ronde.sync.gradient_parts import Ranges

__all__ = ["TensorDivision"]


class TensorDivision(Division):
    """Remembers, by parameter, how it is cut.

    Args:
        ranks: of the tensor group.
        override: as of `placements`.
        told: is given what has become of each parameter of a model that is cut for the first time.
    """

    def __init__(
        self,
        ranks: int,
        override: Mapping[str, str],
        told: Callable[[nn.Module, list[Placement]], object] = lambda model, found: None,
    ) -> None:
        super().__init__(ranks, in_equal_parts)
        self._ranks = ranks
        self._override = override
        self._told = told
        self._cuts: dict[int, tuple[weakref.ref[torch.Tensor], TensorCut]] = {}

    def __call__(self, model: nn.Module) -> list[list[torch.Tensor]]:
        """The parameters that are cut, each a unit of its own."""
        found = placements(model, self._ranks, self._override)
        self._told(model, found)
        units: list[list[torch.Tensor]] = []
        for each in found:
            if each.cut is not None:
                self._know(each.parameter, each.cut)
                units.append([each.parameter])
        return units

    def assign(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        return [self.ranges(tensor) for tensor in tensors]

    def ranges(self, tensor: torch.Tensor) -> Ranges | None:
        ref, cut = self._cuts.get(id(tensor), (None, None))
        if ref is None or cut is None or ref() is not tensor:
            return None
        if cut.dim >= tensor.dim() or not cut.divides(tensor.shape) or not tensor.is_contiguous():
            return None
        return cut.ranges(tensor.shape)

    def _know(self, tensor: torch.Tensor, cut: TensorCut) -> None:
        key = id(tensor)
        if key not in self._cuts:
            weakref.finalize(tensor, self._cuts.pop, key, None).atexit = False
        self._cuts[key] = weakref.ref(tensor), cut

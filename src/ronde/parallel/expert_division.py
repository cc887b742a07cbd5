"""Who has which experts of a model's mixtures."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import nn

from ronde.parallel.division import Division, in_equal_parts
from ronde.parallel.expert_structure import Mixture, mixtures
from ronde.parallel.stage_division import StageRanges
from ronde.parallel.tensor_cut import CutRanges, TensorCut
from ronde.sync.gradient_hooks import has_hooks
from ronde.sync.gradient_parts import Ranges

__all__ = ["ExpertDivision"]


class ExpertDivision(Division):
    """Remembers, by parameter, who has which of its elements.

    Args:
        ranks: over which experts are spread, equally many on each, in their order.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks, in_equal_parts)
        self._ranks = ranks
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], StageRanges | CutRanges]] = {}
        self._mixtures: weakref.WeakKeyDictionary[nn.Module, Mixture] = weakref.WeakKeyDictionary()
        self.without: dict[str, None] = {}
        """Models in which none was found, by their class."""

    def __call__(self, model: nn.Module) -> list[list[torch.Tensor]]:
        """The parameters that are spread, those of an expert together."""
        found = mixtures(model, self._ranks)
        units: dict[tuple[str, int], list[torch.Tensor]] = {}
        for mixture in found:
            suits = [_suits(tensor) for tensor, _ in mixture.parameters]
            if not all(suits):
                continue
            self._mixtures[mixture.module] = mixture
            for tensor, expert in mixture.parameters:
                self._know(tensor, expert, mixture.count)
                units.setdefault((mixture.name, expert), []).append(tensor)
        if not found and not self._mixtures:
            self.without.setdefault(type(model).__name__)
        return list(units.values())

    def mixture(self, module: nn.Module) -> Mixture | None:
        """What is spread of a module; None for another."""
        return self._mixtures.get(module)

    def assign(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        return [self.ranges(tensor) for tensor in tensors]

    def ranges(self, tensor: torch.Tensor) -> Ranges | None:
        ref, ranges = self._known.get(id(tensor), (None, None))
        if ref is None or ranges is None or ref() is not tensor or not tensor.is_contiguous():
            return None
        if isinstance(ranges, CutRanges):
            return ranges.cut.ranges(tensor.shape) if ranges.cut.divides(tensor.shape) else None
        return ranges if ranges.numel == math.prod(tensor.shape) else None

    def _know(self, tensor: torch.Tensor, expert: int, count: int) -> None:
        key = id(tensor)
        if key not in self._known:
            weakref.finalize(tensor, self._known.pop, key, None).atexit = False
        owner = expert * self._ranks // count
        self._known[key] = (
            weakref.ref(tensor),
            TensorCut(0, self._ranks).ranges(tensor.shape)
            if expert < 0
            else StageRanges(owner, self._ranks, tensor.numel()),
        )


def _suits(tensor: torch.Tensor) -> bool:
    # A hook of the script's is to be called by all ranks.
    hooked = bool(tensor._backward_hooks) or has_hooks(tensor)
    return bool(tensor.dim() and tensor.numel()) and tensor.is_contiguous() and not hooked

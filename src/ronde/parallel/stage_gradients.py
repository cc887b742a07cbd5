"""Gradients of parameters that the rank of their stage has: the others know whether there is one."""

from __future__ import annotations

import torch

from ronde.parallel.local_gradients import LocalGradients
from ronde.parallel.stage_division import StageRanges
from ronde.sync.leaf import give_gradient, gradient_of

__all__ = ["StageGradients"]


class StageGradients(LocalGradients):
    """Where a stage's rank has a gradient, the others have one without elements: so ranks agree on it."""

    def end_backward(self) -> None:
        # First: what was whole before is made so again, for which ranks have to agree on what there is.
        rank = self._comm.rank
        blocks = self.everywhere()
        owned = [(block, block.ranges) for block in blocks if isinstance(block.ranges, StageRanges)]
        has = [ranges.owner == rank and gradient_of(block.leaf) is not None for block, ranges in owned]
        counts = self._comm.votes(has)
        for (block, ranges), count in zip(owned, counts, strict=True):
            if count and ranges.owner != rank and gradient_of(block.leaf) is None:
                with torch.inference_mode(False):
                    give_gradient(block.leaf, block.leaf.new_empty(0))
        self._merge_whole(blocks)

    def forget(self, tensor: torch.Tensor) -> None:
        """The parameter is whole on every rank from now on, and so is its gradient. All ranks come here."""
        self.whole(tensor)
        self._leave(tensor)

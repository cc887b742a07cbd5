"""Gradients of parameters that the rank of their stage has: the others know whether there is one."""

from __future__ import annotations

from typing import cast

import torch

from ronde.parallel.local_gradients import LocalGradients
from ronde.sync.gradient_parts import Ranges
from ronde.sync.leaf import give_gradient, gradient_of

__all__ = ["StageGradients"]


class StageGradients(LocalGradients):
    """Where a stage's rank has a gradient, the others have one without elements: so ranks agree on it."""

    def end_backward(self) -> None:
        # First: what was whole before is made so again, for which ranks have to agree on what there is.
        rank = self._comm.rank
        blocks = self.everywhere()
        owns = [cast(Ranges, block.ranges)[rank] is not None for block in blocks]
        counts = self._comm.votes(
            [own and gradient_of(block.leaf) is not None for own, block in zip(owns, blocks, strict=True)]
        )
        for block, own, count in zip(blocks, owns, counts, strict=True):
            if count and not own and gradient_of(block.leaf) is None:
                with torch.inference_mode(False):
                    give_gradient(block.leaf, block.leaf.new_empty(0))
        self._merge_whole(blocks)

    def forget(self, tensor: torch.Tensor) -> None:
        """The parameter is whole on every rank from now on, and so is its gradient. All ranks come here."""
        self.whole(tensor)
        self._leave(tensor)

"""What an update goes by where ranks have blocks of parameters, and gradients of these."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.parallel.block_parts import BlockParts
from ronde.parallel.division import Division
from ronde.parallel.held_parts import HeldParts
from ronde.parallel.local_gradients import LocalGradients
from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.sync.gradient_parts import Ranges
from ronde.sync.home import OnDevice

__all__ = ["HeldBlocks"]


class HeldBlocks(HeldParts):
    """What an update of blocks goes by.

    Args:
        parts: who updates which elements of a block, and of parameters that every rank has; None where each
            rank updates its blocks by itself, and all other parameters are updated alike on every rank.
    """

    def __init__(
        self,
        division: Division,
        gradients: LocalGradients,
        parameters: ShardedParameters,
        parts: BlockParts | None = None,
    ) -> None:
        super().__init__(division, OnDevice(), gradients, parameters)
        self._parts = parts

    def divide(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        if self._parts is not None:
            return self._parts.assign(tensors)
        return [self.division.ranges(each) if self.part(each) is not None else None for each in tensors]

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        block = super().part(tensor)
        if block is None or self._parts is None or not self._parts.stands(tensor):
            return block
        return self._parts.own(tensor, block)

    def fits(self, tensor: torch.Tensor) -> bool:
        if self._parts is None:
            return self.part(tensor) is not None and super().fits(tensor)
        return super().fits(tensor)

    def stands(self, tensor: torch.Tensor) -> bool:
        return self.fits(tensor) and (self._parts is None or self._parts.stands(tensor))

    def gradient_beside(self, tensor: torch.Tensor, own: tuple[int, int]) -> list[torch.Tensor]:
        block = None if self.gradients is None else self.gradients.part(tensor)
        if block is None:
            return super().gradient_beside(tensor, own)
        return [] if self._parts is None else self._parts.beside(tensor, block)

    def own_gradient(self, tensor: torch.Tensor, own: tuple[int, int]) -> torch.Tensor:
        gradient = super().own_gradient(tensor, own)
        in_block = self.gradients is not None and tensor in self.gradients
        return self._parts.own(tensor, gradient) if in_block and self._parts is not None else gradient

    def end_update(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._parts is not None:
            blocks = zip(tensors, map(super().part, tensors), strict=True)
            self._parts.share([(each, block) for each, block in blocks if block is not None])
        super().end_update(tensors)

"""What an update goes by where ranks have blocks of parameters, and gradients of these."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.parallel.division import Division
from ronde.parallel.held_parts import HeldParts
from ronde.parallel.local_gradients import LocalGradients
from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.sync.gradient_parts import Ranges
from ronde.sync.home import OnDevice

__all__ = ["HeldBlocks"]


class HeldBlocks(HeldParts):
    """What an update of blocks goes by; all other parameters are updated alike on every rank."""

    def __init__(self, division: Division, gradients: LocalGradients, parameters: ShardedParameters) -> None:
        super().__init__(division, OnDevice(), gradients, parameters)

    def divide(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        return [self.division.ranges(each) if self.part(each) is not None else None for each in tensors]

    def fits(self, tensor: torch.Tensor) -> bool:
        return self.part(tensor) is not None and super().fits(tensor)

"""Data of which batches are drawn, without a loader."""

from __future__ import annotations

import torch
from torch import Tensor


class Drawn:
    """Batches of samples at random places."""

    def __init__(self, places: int):
        self.places = places

    def draw(self, count: int, *, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """The inputs and targets of `rank`, of `count` samples that all ranks have together.

        The places of all are drawn, so that every number of ranks sees the same batches.
        """
        return self.at(torch.randint(self.places, (count,)).chunk(ranks)[rank])

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Rows(Drawn):
    """Rows of two tensors."""

    def __init__(self, inputs: Tensor, targets: Tensor):
        super().__init__(len(inputs))
        self.inputs, self.targets = inputs, targets

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[places], self.targets[places]

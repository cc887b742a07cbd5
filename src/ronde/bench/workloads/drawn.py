"""Data of the workloads: random images, and sources of batches without a loader."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

CLASSES = 10


class DrawnBatches:
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


class TensorRows(DrawnBatches):
    """TensorRows of two tensors."""

    def __init__(self, inputs: Tensor, targets: Tensor):
        super().__init__(len(inputs))
        self.inputs, self.targets = inputs, targets

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[places], self.targets[places]


class Text(DrawnBatches):
    """Random words in windows; the target is the window one word later."""

    def __init__(self, vocabulary: int, window: int, words: int = 100_000):
        super().__init__(words - window)
        self.words = torch.randint(vocabulary, (words,))
        self.window = window

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.stack([self.words[start : start + self.window] for start in places])
        y = torch.stack([self.words[start + 1 : start + 1 + self.window] for start in places])
        return x, y


def images(count: int) -> TensorDataset:
    """Random grey images of 28 x 28 in ten classes."""
    return TensorDataset(torch.randn(count, 1, 28, 28), torch.randint(CLASSES, (count,)))

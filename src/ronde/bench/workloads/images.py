"""Random grey images of 28 x 28 in ten classes."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

CLASSES = 10


def images(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 1, 28, 28), torch.randint(CLASSES, (count,)))

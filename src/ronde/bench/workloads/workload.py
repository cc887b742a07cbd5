"""Workload: the part of a training that a script and its twins share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from drawn import DrawnBatches
from torch import Tensor, nn
from torch.utils.data import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model, its data and its optimizer.

    Attributes:
        batch_size: samples of a global batch, or of each rank's, as the method has it.
        steps, warm_up: timed steps of a run, and steps before the clock starts.
        data: makes at least so many samples of (inputs, targets), or a source of batches.
        twin_model: makes the model of the twins; None for the same.
        optimizer: makes the optimizer of the parameters.
        loss: the mean over the batch, of outputs and targets.
        reads_loss: whether the script reads the loss at every step.
    """

    batch_size: int
    steps: int
    warm_up: int
    data: Callable[[int], Dataset[tuple[Tensor, ...]] | DrawnBatches]
    model: Callable[[], nn.Module]
    optimizer: partial[Any]
    twin_model: Callable[[], nn.Module] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    reads_loss: bool = False

    def twins(self) -> nn.Module:
        """The model of the twins."""
        return (self.twin_model or self.model)()

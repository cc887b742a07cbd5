"""What the script of a workload and its twins share. The loop is each script's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from drawn import Drawn
from torch import Tensor, nn
from torch.utils.data import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model and what it is trained on.

    Attributes:
        batch_size: samples of a global batch; under a method that fixes the batch of a device, of that.
        steps, warm_up: timed steps of a run, and steps before the clock starts.
        data: at least so many samples as (inputs, targets), or what batches are drawn from.
        twin_model: what the twins train in its place, None where it is the same.
        optimizer: of the parameters.
        loss: of outputs and targets, the mean over the batch.
        reads_loss: the script reads it at every step.
    """

    batch_size: int
    steps: int
    warm_up: int
    data: Callable[[int], Dataset[tuple[Tensor, ...]] | Drawn]
    model: Callable[[], nn.Module]
    optimizer: partial[Any]
    twin_model: Callable[[], nn.Module] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    reads_loss: bool = False

    def twins(self) -> nn.Module:
        """The model of the twins."""
        return (self.twin_model or self.model)()

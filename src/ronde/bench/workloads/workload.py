"""What the script of a workload and its twins share. The loop is each script's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from text import Text
from torch import Tensor, nn
from torch.utils.data import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model and what it is trained on.

    Attributes:
        batch_size: samples of a global batch; under a method that fixes the batch of a device, of that.
        steps, warm_up: timed steps of a run, and steps before the clock starts.
        data: at least so many samples as (inputs, targets), or a text to draw batches from.
        optimizer: of the parameters.
        loss: of outputs and targets, the mean over the batch.
    """

    batch_size: int
    steps: int
    warm_up: int
    data: Callable[[int], Dataset[tuple[Tensor, ...]] | Text]
    model: Callable[[], nn.Module]
    optimizer: partial[Any]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy

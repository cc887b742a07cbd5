"""Optimizers that update every element by itself, and so can step on shards."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

__all__ = ["ELEMENTWISE", "is_elementwise"]

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.Rprop,
)
"""torch's own, but for those that look at a tensor as a whole (Adafactor, Muon), at several (LBFGS), or
at rows (SparseAdam)."""


def is_elementwise(optimizer: Any) -> bool:
    """Return whether an optimizer is exactly one of `ELEMENTWISE`.

    The update of a subclass is unknown. A differentiable step keeps a graph from old parameters to new ones,
    in which other ranks' parts are missing.
    """
    return type(optimizer) in ELEMENTWISE and not optimizer.defaults.get("differentiable", False)

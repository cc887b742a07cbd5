"""Finds the first tensor of a batch, which gives the count of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["first_tensor"]


def first_tensor(batch: Any) -> torch.Tensor | None:
    """Return the first tensor among a batch's entries; None without one.

    Args:
        batch: a tensor, or a mapping, list or tuple with tensors among its values.
    """
    entries = (
        batch.values()
        if isinstance(batch, Mapping)
        else batch
        if isinstance(batch, (list, tuple))
        else (batch,)
    )
    return next((entry for entry in entries if isinstance(entry, torch.Tensor)), None)

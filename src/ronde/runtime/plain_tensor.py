"""Tensors that leave the ranks: whole, without a graph, for plain torch."""

from __future__ import annotations

import torch

from ronde.tensor.global_tensor import materialize

__all__ = ["plain_tensor"]


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor that can be pickled: whole, without a graph. A collective for one that is cut."""
    value = materialize(value)
    if not value.is_leaf:
        value = value.detach()
    if type(value) is torch.Tensor and value.layout is torch.strided and not value.requires_grad:
        used = value.numel() * value.element_size()
        if value.untyped_storage().nbytes() > used:
            return value.clone()  # a row of a data set comes without the data set
    return value

"""Batches that are lists: one entry for each sample, as detection models take images of several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ronde.tensor.global_tensor import GlobalTensor
from ronde.tensor.tree import leaves

__all__ = ["LISTED", "are_samples", "listed_samples"]

LISTED = "its batch is a list with an entry for each sample; what it calls on them stacked is cut"
# Those of images, or of what a model makes of them, with a batch axis.
_DIMS_OF_IMAGES = 4


def listed_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The number of entries where the first argument with tensors may be a list of samples, else None.

    An entry is a tensor or a mapping with tensors. A list of several inputs, with the batch on their
    first axis, looks the same: a rehearsal tells.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return None
        if type(value) in (list, tuple) and value and all(map(_is_sample, value)):
            return len(value)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves(value)):
            return None
    return None


def are_samples(values: list[Any]) -> bool:
    """Whether entries that begin with an axis too short to be cut are samples: else they are a few rows."""
    return any(isinstance(value, torch.Tensor) and value.dim() < _DIMS_OF_IMAGES for value in values)


def _is_sample(value: object) -> bool:
    if isinstance(value, Mapping):
        tensors = [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
        return bool(tensors) and all(map(_is_plain, tensors))
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    """Rows of a cut batch are known to be rows."""
    return isinstance(value, torch.Tensor) and not isinstance(value, (GlobalTensor, torch.nn.Parameter))

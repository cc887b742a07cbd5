"""Weights that are looked up with `sparse=True` are known before their first gradient is there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ronde.patching.patches import Patches

__all__ = ["install"]


def install(patches: Patches, adopt: Callable[[torch.Tensor], None]) -> None:
    """Have `adopt` hear of the weight of each sparse `embedding` and `embedding_bag`."""
    plain_embedding: Callable[..., Any] = F.embedding
    plain_bag: Callable[..., Any] = F.embedding_bag

    def hear(weight: Any, sparse: bool) -> None:
        if sparse and weight.requires_grad and weight.is_leaf and torch.is_grad_enabled():
            adopt(weight)

    @functools.wraps(plain_embedding)
    def embedding(
        input: Any,
        weight: Any,
        padding_idx: Any = None,
        max_norm: Any = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        hear(weight, sparse)
        return plain_embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)

    @functools.wraps(plain_bag)
    def embedding_bag(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        # Behind offsets, max_norm, norm_type, scale_grad_by_freq and mode.
        hear(weight, args[5] if len(args) > 5 else kwargs.get("sparse", False))
        return plain_bag(input, weight, *args, **kwargs)

    patches.set(F, "embedding", embedding)
    patches.set(F, "embedding_bag", embedding_bag)

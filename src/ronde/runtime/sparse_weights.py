"""Weights of sparse look-ups, adopted before their first gradient, perhaps with spread rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ronde.parallel.sparse.lookup import RowLookup
from ronde.patching.patches import Patches

__all__ = ["install"]


def install(patches: Patches, adopt: Callable[[torch.Tensor], None], spread: RowLookup | None) -> None:
    """Call `adopt` with the weight of each sparse `embedding` and `embedding_bag`.

    Args:
        spread: look-up in weights with spread rows; None where the plan has none.
    """
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
        rows = spread if sparse and max_norm is None and not scale_grad_by_freq else None
        if rows is not None and rows.takes(weight, input):
            return rows.embedding(input, weight, padding_idx)
        return plain_embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)

    @functools.wraps(plain_bag)
    def embedding_bag(  # noqa: PLR0913 - torch's own
        input: Any,
        weight: Any,
        offsets: Any = None,
        max_norm: Any = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: Any = None,
        include_last_offset: bool = False,
        padding_idx: Any = None,
    ) -> Any:
        hear(weight, sparse)
        rows = spread if sparse and max_norm is None and not scale_grad_by_freq else None
        if rows is not None and rows.takes_bag(weight, input, offsets, mode, per_sample_weights):
            return rows.bag(
                input,
                weight,
                offsets,
                mode=mode,
                per_sample_weights=per_sample_weights,
                include_last_offset=include_last_offset,
                padding_idx=padding_idx,
            )
        return plain_bag(
            input,
            weight,
            offsets,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            per_sample_weights,
            include_last_offset,
            padding_idx,
        )

    patches.set(F, "embedding", embedding)
    patches.set(F, "embedding_bag", embedding_bag)

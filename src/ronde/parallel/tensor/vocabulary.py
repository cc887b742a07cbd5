"""Embeddings cut over rows, and losses of logits cut over classes.

Each rank looks up the rows that it has; other rows are zero there. For each row of logits ranks exchange
three numbers, not the row (Shoeybi et al. 2019, "Megatron-LM").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ronde.parallel.tensor.sequence_parallel import TokenSharding
from ronde.patching.torch_internals import disable_current_modes
from ronde.tensor.context import Context
from ronde.tensor.edges import SumRanks
from ronde.tensor.global_tensor import is_global
from ronde.tensor.rules.common import is_sharded, rewrap

__all__ = ["cross_entropy", "embedding"]


def embedding(
    tokens: TokenSharding, context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Look up `ids [...]` in `weight [rows, width]`, cut along either dimension.

    Raises:
        IndexError: an id is out of range; raised on every rank, as on one device.
    """
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = dict(zip(names, args, strict=False)) | kwargs
    ids, weight, padding = given["input"], given["weight"], given.get("padding_idx")
    special = given.get("max_norm") is not None or given.get("scale_grad_by_freq") or given.get("sparse")
    if not is_sharded(weight, context) or is_global(ids, context) or special:
        return NotImplemented
    own = weight._local
    assert own is not None
    if weight._layout.outer != 1:
        return NotImplemented
    if weight._layout.dim == 1:
        return rewrap(weight, F.embedding(ids, own, padding), weight._layout.at(-1))
    rows, start = weight.shape[0], context.rank * own.shape[0]
    if _any((ids < 0) | (ids >= rows)):
        raise IndexError("index out of range in self")
    here = (ids >= start) & (ids < start + own.shape[0])
    padding = None if padding is None else padding % rows - start
    mine = padding if padding is not None and 0 <= padding < own.shape[0] else None
    found = F.embedding(torch.where(here, ids - start, 0), own, mine)
    return tokens.looked_up(context, torch.where(here.unsqueeze(-1), found, 0), weight)


def cross_entropy(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute the cross-entropy of logits `[rows, classes]`, cut over classes.

    The target is `[rows]` of class numbers.
    """
    names = (
        "input",
        "target",
        "weight",
        "size_average",
        "ignore_index",
        "reduce",
        "reduction",
        "label_smoothing",
    )
    given = dict(zip(names, args, strict=False)) | kwargs
    logits, target = given["input"], given["target"]
    plain = all(given.get(name) is None for name in ("weight", "size_average", "reduce"))
    if (
        not is_sharded(logits, context)
        or logits.dim() != 2
        or logits._layout.dim != 1
        or logits._layout.outer != 1
    ):
        return NotImplemented
    if not plain or given.get("label_smoothing") or is_global(target, context) or target.dim() != 1:
        return NotImplemented
    if target.dtype is not torch.int64 or target.shape[0] != logits.shape[0]:
        return NotImplemented  # torch's own error
    reduction, ignored = given.get("reduction", "mean"), given.get("ignore_index", -100)
    own = logits._local
    assert own is not None
    counted = target != ignored
    if _any(counted & ((target < 0) | (target >= logits.shape[1]))):
        return NotImplemented  # torch's own error
    losses = _of_rows(context, own, torch.where(counted, target, 0))
    losses = torch.where(counted, losses, 0)
    if reduction == "none":
        return losses
    return losses.sum() / counted.sum() if reduction == "mean" else losses.sum()


def _any(flags: torch.Tensor) -> bool:
    """Return whether any flag is set, unseen by modes.

    Modes look for values of rows that decide about control flow: these flags end the script, or change
    nothing.
    """
    with torch.no_grad(), disable_current_modes():
        return bool(flags.any())


def _of_rows(context: Context, own: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return each row's log-sum-exp of logits, less the target's logit."""
    largest = context.comm.all_gather(own.detach().amax(1)).amax(0)
    shifted = own - largest.unsqueeze(1)
    start = context.rank * own.shape[1]
    here = (target >= start) & (target < start + own.shape[1])
    picked = shifted.gather(1, torch.where(here, target - start, 0).unsqueeze(1)).squeeze(1)
    sums: Any = SumRanks.apply(torch.stack([shifted.exp().sum(1), torch.where(here, picked, 0)]), context)
    return sums[0].log() - sums[1]

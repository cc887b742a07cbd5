"""Looks up rows of a weight whose rows are spread: ids go to their owners, rows come back (as in TorchRec).

The gradient is that of torch's own sparse look-up, of the ids of this rank; who owns which rows is asked when
all gradients of a backward are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ronde.comm.process_group import Comm
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.policies.rows import first_rows
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.sync.sparse_rows import exchange
from ronde.tensor.context import Context, in_transform
from ronde.tensor.tensor_class import own_class

__all__ = ["RowLookup"]


class RowLookup:
    """Takes the place of look-ups in spread weights; all ranks come to each.

    Args:
        parameters: which weights are in parts.
    """

    def __init__(self, context: Context, parameters: ShardedParameters) -> None:
        self._context = context
        self._parameters = parameters

    def takes(self, weight: Any, ids: Any) -> bool:
        """Whether rows of the weight are spread, and these are ids that this rank has.

        Other ids, and such as torch refuses, are for torch and the whole weight.
        """
        if torch.compiler.is_compiling() or in_transform() or not isinstance(ids, torch.Tensor):
            return False
        if own_class(ids) is not None or ids.dtype not in (torch.int64, torch.int32):
            return False
        return self._context.is_in_step() and self._parameters.own(weight) is not None

    def takes_bag(self, weight: Any, ids: Any, offsets: Any, mode: str, per_sample_weights: Any) -> bool:
        """As `takes`, of a look-up of bags."""
        if not self.takes(weight, ids) or mode not in ("sum", "mean"):
            return False
        with DisableTorchFunction():  # an observed call would take sizes for what it reads
            in_rows = ids.dim() == 2 and offsets is None
            laid_end_to_end = (
                ids.dim() == 1 and isinstance(offsets, torch.Tensor) and own_class(offsets) is None
            )
            weighted = per_sample_weights is not None
            suits = not weighted or (mode == "sum" and per_sample_weights.shape == ids.shape)
        return (
            (in_rows or laid_end_to_end) and suits and (not weighted or own_class(per_sample_weights) is None)
        )

    def embedding(self, ids: torch.Tensor, weight: torch.Tensor, padding_idx: int | None) -> torch.Tensor:
        """As `F.embedding`; ids of any shape to [*ids.shape, dim].

        Raises:
            IndexError: an id is out of range, in torch's words.
        """
        if padding_idx is not None and padding_idx < 0:
            padding_idx += weight.shape[0]
        return _Rows.apply(weight, ids, self._rows_of, padding_idx)  # pyright: ignore[reportReturnType]

    def bag(
        self,
        ids: torch.Tensor,
        weight: torch.Tensor,
        offsets: torch.Tensor | None,
        *,
        mode: str,
        per_sample_weights: torch.Tensor | None,
        include_last_offset: bool,
        padding_idx: int | None,
    ) -> torch.Tensor:
        """As `F.embedding_bag` of mode "sum" or "mean"; ids [bags, n], or [n] with offsets, to [bags, dim].

        Raises:
            IndexError: an id is out of range, in torch's words.
        """
        if padding_idx is not None and padding_idx < 0:
            padding_idx += weight.shape[0]
        rows = self.embedding(ids, weight, padding_idx)
        if ids.dim() == 2:
            return _pooled(rows, ids, mode, per_sample_weights, padding_idx)
        # Whatever torch makes of offsets: its own pooling, of rows that are there already.
        order = torch.arange(len(ids), device=ids.device)
        if padding_idx is not None:
            rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
            order = torch.where(ids == padding_idx, len(ids), order)
        return F.embedding_bag(
            order,
            rows,
            None if offsets is None else offsets.to(order.dtype),
            mode=mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=include_last_offset,
            padding_idx=None if padding_idx is None else len(ids),
        )

    def _rows_of(self, weight: torch.Tensor, distinct: torch.Tensor) -> torch.Tensor:
        """Rows of rising ids, each from its owner, or from the whole if it is there; [n] to [n, dim]."""
        comm, (rows, dim) = self._context.comm, weight.shape
        part = self._parameters.latest(weight)
        if part is None:
            return weight.detach().index_select(0, distinct)
        return _from_owners(comm, part.view(-1, dim), distinct, first_rows(rows, comm.world_size))


def _from_owners(
    comm: Comm, own: torch.Tensor, distinct: torch.Tensor, firsts: Sequence[int]
) -> torch.Tensor:
    """Rows of rising ids.

    Args:
        own: this rank's rows, [rows, dim].
        firsts: see `first_rows`.
    """
    asked = exchange(comm, distinct, firsts)
    here = torch.cat(asked.received) - firsts[comm.rank]
    answers = own.index_select(0, here).split(asked.come)
    return torch.cat(comm.all_to_all(answers, asked.sent))  # owners follow one another, as ids do


def _pooled(
    rows: torch.Tensor,
    ids: torch.Tensor,
    mode: str,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int | None,
) -> torch.Tensor:
    """Bags of one length, by operations of which each is known to keep rows apart."""
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.sum(1) if mode == "sum" or not rows.shape[1] else rows.mean(1)
    kept = ids != padding_idx
    total = rows.masked_fill(~kept.unsqueeze(-1), 0).sum(1)
    return total if mode == "sum" else total / kept.sum(1, keepdim=True).clamp(min=1)


class _Rows(torch.autograd.Function):
    """Rows by id; the gradient of the weight is sparse, and has each id once."""

    # An observed call is told: each row of ids gets its own, though ranks meet for them.
    looks_up_rows = True

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        weight, ids, rows_of, padding_idx = arguments
        with DisableTorchFunction():  # what is known of a weight without elements
            shape = weight.shape
        distinct, inverse = torch.unique(ids.detach().to(torch.int64), return_inverse=True)
        ctx.save_for_backward(distinct, inverse)
        ctx.shape, ctx.padding_idx = shape, padding_idx
        found = rows_of(weight, distinct)
        return found.index_select(0, inverse.view(-1)).view(*ids.shape, shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        distinct, inverse = ctx.saved_tensors
        given = gradients[0].reshape(-1, ctx.shape[1])
        summed = given.new_zeros(len(distinct), ctx.shape[1]).index_add_(0, inverse.reshape(-1), given)
        if ctx.padding_idx is not None:
            kept = distinct != ctx.padding_idx
            distinct, summed = distinct[kept], summed[kept]
        gradient = torch.sparse_coo_tensor(
            distinct.unsqueeze(0), summed, ctx.shape, is_coalesced=True, check_invariants=False
        )
        return gradient, None, None, None

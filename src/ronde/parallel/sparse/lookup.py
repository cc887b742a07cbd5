"""Lookup in row-sharded weights: ids go to owners, rows return (as in TorchRec).

The gradient is torch's sparse gradient for the ids of this rank; it is sent to the owners of rows when all
gradients of a backward are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ronde.comm.process_group import Comm
from ronde.comm.split import even_offsets
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.sync.sparse_rows import exchange
from ronde.tensor.context import Context, in_transform
from ronde.tensor.tensor_class import own_class

__all__ = ["RowLookup"]


class RowLookup:
    """Replaces look-ups in spread weights; each is a collective.

    Args:
        parameters: store that knows the sharded weights.
    """

    def __init__(self, context: Context, parameters: ShardedParameters) -> None:
        self._context = context
        self._parameters = parameters

    def takes(self, weight: Any, ids: Any) -> bool:
        """Return whether the weight is spread and the ids are supported.

        Other ids, and ids that torch refuses, are left to torch and the whole weight.
        """
        if torch.compiler.is_compiling() or in_transform() or not isinstance(ids, torch.Tensor):
            return False
        if own_class(ids) is not None or ids.dtype not in (torch.int64, torch.int32):
            return False
        return self._context.is_in_step() and self._parameters.own(weight) is not None

    def takes_bag(self, weight: Any, ids: Any, offsets: Any, mode: str, per_sample_weights: Any) -> bool:
        """Return whether a look-up of bags is supported, like `takes`."""
        if not self.takes(weight, ids) or mode not in ("sum", "mean"):
            return False
        with DisableTorchFunction():  # an observed call would see reads of sizes
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
        """Look up rows like `F.embedding`; ids of any shape to [*ids.shape, dim].

        Raises:
            IndexError: an id is out of range; with torch's message.
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
        """Look up and pool rows like `F.embedding_bag` with mode "sum" or "mean".

        Ids are [bags, n], or [n] with offsets; the result is [bags, dim].

        Raises:
            IndexError: an id is out of range; with torch's message.
        """
        if padding_idx is not None and padding_idx < 0:
            padding_idx += weight.shape[0]
        rows = self.embedding(ids, weight, padding_idx)
        if ids.dim() == 2:
            return _pooled(rows, ids, mode, per_sample_weights, padding_idx)
        # torch's own pooling interprets the offsets, on rows that are looked up already.
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
        """Return rows of rising ids from their owners; [n] to [n, dim]."""
        comm, (rows, dim) = self._context.comm, weight.shape
        part = self._parameters.latest(weight)
        if part is None:
            return weight.detach().index_select(0, distinct)
        return _from_owners(comm, part.view(-1, dim), distinct, even_offsets(rows, comm.world_size))


def _from_owners(
    comm: Comm, own: torch.Tensor, distinct: torch.Tensor, firsts: Sequence[int]
) -> torch.Tensor:
    """Fetch rows of rising ids.

    Args:
        own: rows of this rank, [rows, dim].
        firsts: the first row of each rank, followed by the number of rows.
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
    """Pool bags of one length, by operations that are known to keep rows apart."""
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.sum(1) if mode == "sum" or not rows.shape[1] else rows.mean(1)
    kept = ids != padding_idx
    total = rows.masked_fill(~kept.unsqueeze(-1), 0).sum(1)
    return total if mode == "sum" else total / kept.sum(1, keepdim=True).clamp(min=1)


class _Rows(torch.autograd.Function):
    """Lookup of rows by id, with a coalesced sparse gradient of the weight."""

    # Tells an observed call that each row of ids gets its own output row, although ranks exchange ids.
    looks_up_rows = True

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        weight, ids, rows_of, padding_idx = arguments
        with DisableTorchFunction():  # metadata of a weight without elements
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

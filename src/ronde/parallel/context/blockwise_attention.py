"""Attention to a block of keys and values, merged with results of other blocks.

Results of blocks are merged by the logarithms of their sums of exponentials (Rabe and Staats 2021). torch's
fused kernel computes a block on the CPU, as it returns these logarithms and accepts them in backward;
dropout, a large mask or another device need the plain formula.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ronde.patching.torch_internals import attention_on_cpu, attention_on_cpu_backward

__all__ = [
    "BlockResults",
    "OperandBlock",
    "Operands",
    "Pieces",
    "VisibleKeys",
    "attended",
    "merge",
    "seen",
    "went_back",
]

Pieces = Sequence[tuple[int, int]]
"""Ascending ranges of positions."""

# A mask that adds more than this to all visible keys costs precision in the sum of exponentials.
_ADDS_MUCH = 100.0


@dataclasses.dataclass(frozen=True, slots=True)
class VisibleKeys:
    """Part of a block that queries see.

    Attributes:
        queries, keys: ranges of the block's queries and keys.
        mask: True where a key is seen; None if all are.
        diagonal: whether each query sees its own key and earlier ones, for equally many of both.
    """

    queries: slice
    keys: slice
    mask: torch.Tensor | None = None
    diagonal: bool = False


def seen(queries: Pieces, keys: Pieces, *, causal: bool) -> list[VisibleKeys]:
    """Return the parts of a block in which keys are not after all queries.

    >>> [(part.queries, part.keys) for part in seen([(0, 2), (6, 8)], [(2, 4), (4, 6)], causal=True)]
    [(slice(2, 4, None), slice(0, 4, None))]
    """
    count, width = (sum(stop - start for start, stop in pieces) for pieces in (queries, keys))
    if not count or not width:
        return []
    if not causal:
        return [VisibleKeys(slice(0, count), slice(0, width))]
    if list(queries) == list(keys):
        return [VisibleKeys(slice(0, count), slice(0, width), diagonal=True)]
    found: list[VisibleKeys] = []
    at = 0
    for start, stop in keys:
        if start == stop:
            continue
        after, first = at + stop - start, _before(queries, start)
        all_of_it = _before(queries, stop - 1)
        if (start, stop) in queries:
            all_of_it = first + stop - start
            found.append(VisibleKeys(slice(first, all_of_it), slice(at, after), diagonal=True))
        elif first < all_of_it:
            positions = _positions(queries)[first:all_of_it, None]
            mask = positions >= torch.arange(start, stop)
            found.append(VisibleKeys(slice(first, all_of_it), slice(at, after), mask))
        if all_of_it < count:
            last = found[-1] if found else None
            whole = last is not None and last.mask is None and not last.diagonal
            if last is not None and whole and last.queries.start == all_of_it:
                found[-1] = VisibleKeys(last.queries, slice(last.keys.start, after))
            else:
                found.append(VisibleKeys(slice(all_of_it, count), slice(at, after)))
        at = after
    return found


def _before(pieces: Pieces, position: int) -> int:
    """Return how many positions of `pieces` are less than `position`."""
    return sum(min(max(position - start, 0), stop - start) for start, stop in pieces)


def _positions(pieces: Pieces) -> torch.Tensor:
    return torch.cat([torch.arange(start, stop) for start, stop in pieces])


class OperandBlock(NamedTuple):
    """Operands of attention for a part of a block."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class BlockResults(NamedTuple):
    """Results of queries, log-sum-exps of their scores, and gradients of the results."""

    out: torch.Tensor
    total: torch.Tensor
    gradient: torch.Tensor


class Operands:
    """Queries `[batch, heads, tokens, width]` of this rank, with mask and dropout.

    Args:
        mask, kept: `[..., queries, all keys]`, or the mask broadcast to it.
        keys: number of keys in all blocks.
        dropout_p: dropout probability with which `kept` was drawn.

    Attributes:
        base: number subtracted from each query's scores, `[..., tokens, 1]`; None for none.
    """

    def __init__(
        self,
        query: torch.Tensor,
        mask: torch.Tensor | None,
        kept: torch.Tensor | None,
        *,
        keys: int,
        scale: float,
        dropout_p: float,
    ) -> None:
        self.query, self.mask, self.kept = query, mask, kept
        self.keys, self.scale, self.dropout_p = keys, scale, dropout_p
        self.wide = torch.promote_types(query.dtype, torch.float32)
        self.base: torch.Tensor | None = None
        if mask is not None and mask.dtype is not torch.bool:
            most = mask.amax(-1, keepdim=True).to(self.wide)
            most = most.masked_fill(most.isinf(), 0.0)
            self.base = most if bool((most.abs() > _ADDS_MUCH).any()) else None

    def part(self, pieces: Pieces, seen: VisibleKeys) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the mask and dropout pattern of a part of a block."""
        mask, kept = (
            None if whole is None else _rows(_columns(whole, pieces), seen)
            for whole in (_widened(self.mask, self.keys), self.kept)
        )
        return (seen.mask.to(self.query.device) if seen.mask is not None else mask), kept

    def has_kernel(self, value: torch.Tensor) -> bool:
        """Return whether torch has a kernel that returns and accepts log-sum-exps."""
        on_cpu = self.query.device.type == "cpu" and self.query.dim() == 4
        return on_cpu and self.kept is None and self.query.shape[-1] == value.shape[-1]

    def is_fused(self, value: torch.Tensor) -> bool:
        """Return whether that kernel computes the blocks."""
        return self.has_kernel(value) and self.base is None


def _columns(whole: torch.Tensor, pieces: Pieces) -> torch.Tensor:
    parts = [whole[..., start:stop] for start, stop in pieces]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _widened(mask: torch.Tensor | None, keys: int) -> torch.Tensor | None:
    """Expand a mask to a column for each key."""
    return mask if mask is None or mask.shape[-1] != 1 else mask.expand(*mask.shape[:-1], keys)


def _rows(block: torch.Tensor, seen: VisibleKeys) -> torch.Tensor:
    block = block[..., seen.keys]
    return block if block.dim() < 2 or block.shape[-2] == 1 else block[..., seen.queries, :]


def merge(out: torch.Tensor, total: torch.Tensor, made: torch.Tensor, sums: torch.Tensor) -> None:
    """Merge a block's result into another, each weighted by its share of the sum."""
    both = torch.logaddexp(total, sums)
    # Both are minus infinity for a query that has seen nothing yet.
    before, now = (torch.exp(each - both).nan_to_num_(0.0).unsqueeze(-1) for each in (total, sums))
    out.mul_(before).add_(made.to(out.dtype).mul_(now) if made.dtype != out.dtype else made.mul_(now))
    total.copy_(both)


def _added(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the additive form of a mask, with four axes."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -math.inf)
    return mask.to(dtype)[(None,) * (4 - mask.dim())]


def attended(
    own: Operands, pieces: Pieces, seen: VisibleKeys, block: OperandBlock
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result for a part of a block, and its log-sum-exps."""
    return (_fused if own.is_fused(block.value) else _by_hand)(own, pieces, seen, block)


def went_back(
    own: Operands, pieces: Pieces, seen: VisibleKeys, block: OperandBlock, known: BlockResults
) -> Sequence[torch.Tensor]:
    """Compute the gradients of a part's queries, keys and values."""
    return (_fused_backward if own.is_fused(block.value) else _by_hand_backward)(
        own, pieces, seen, block, known
    )


def _fused(
    own: Operands, pieces: Pieces, seen: VisibleKeys, block: OperandBlock
) -> tuple[torch.Tensor, torch.Tensor]:
    mask = _added(own.part(pieces, seen)[0], block.query.dtype)
    made, sums = attention_on_cpu(*block, 0.0, seen.diagonal, attn_mask=mask, scale=own.scale)
    if mask is not None:
        # The kernel returns 0 for a query that sees nothing.
        sums = sums.masked_fill((mask == -math.inf).all(-1), -math.inf)
    return made, sums


def _fused_backward(
    own: Operands,
    pieces: Pieces,
    seen: VisibleKeys,
    block: OperandBlock,
    known: BlockResults,
) -> Sequence[torch.Tensor]:
    mask = _added(own.part(pieces, seen)[0], block.query.dtype)
    given = known.gradient, *block, known.out, known.total
    return attention_on_cpu_backward(*given, 0.0, seen.diagonal, attn_mask=mask, scale=own.scale)


def _shares(
    own: Operands, seen: VisibleKeys, mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Return attention scores: logs of each key's share, times the query's sum."""
    # As torch's own computation on the CPU scales, where dropout is drawn.
    factor = math.sqrt(abs(own.scale))
    signed = math.copysign(factor, own.scale)
    found = (query.to(own.wide) * signed) @ (key.to(own.wide) * factor).transpose(-2, -1)
    if seen.diagonal:
        mask = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).tril()
    if mask is not None:
        found = found.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else found + mask
    return found if own.base is None else found - _base(own, seen)


def _base(own: Operands, seen: VisibleKeys) -> torch.Tensor:
    assert own.base is not None
    return own.base if own.base.shape[-2] == 1 else own.base[..., seen.queries, :]


def _by_hand(
    own: Operands, pieces: Pieces, seen: VisibleKeys, block: OperandBlock
) -> tuple[torch.Tensor, torch.Tensor]:
    mask, kept = own.part(pieces, seen)
    query, key, value = (_for_each_query(each, block.query) for each in block)
    found = _shares(own, seen, mask, query, key)
    sums = found.logsumexp(-1)
    shares = found.sub_(sums.masked_fill(sums == -math.inf, math.inf).unsqueeze(-1)).exp_()
    if kept is not None:
        shares.mul_(kept).div_(1 - own.dropout_p)
    return shares @ value.to(own.wide), sums


def _by_hand_backward(
    own: Operands,
    pieces: Pieces,
    seen: VisibleKeys,
    block: OperandBlock,
    known: BlockResults,
) -> Sequence[torch.Tensor]:
    mask, kept = own.part(pieces, seen)
    out, total, gradient = known
    if own.base is not None and own.has_kernel(block.value):
        # One device's kernel stores the log-sum-exp including the mask, and loses these digits.
        total = (total + _base(own, seen).squeeze(-1)) - _base(own, seen).squeeze(-1)
    query, key, value = (_for_each_query(each, block.query) for each in block)
    shares = _shares(own, seen, mask, query, key).sub_(total.unsqueeze(-1)).exp_()
    gradient = gradient.to(own.wide)
    of_shares = gradient @ value.to(own.wide).transpose(-2, -1)
    used = shares
    if kept is not None:
        factor = kept.to(own.wide).div_(1 - own.dropout_p)
        used, of_shares = shares * factor, of_shares.mul_(factor)
    of_value = used.transpose(-2, -1) @ gradient
    of_found = shares.mul_(of_shares.sub_((gradient * out).sum(-1, keepdim=True))).mul_(own.scale)
    of_key = of_found.transpose(-2, -1) @ query.to(own.wide)
    return of_found @ key.to(own.wide), _of_groups(of_key, block.key), _of_groups(of_value, block.value)


def _for_each_query(value: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeat keys or values for each head of queries."""
    times = query.shape[-3] // value.shape[-3] if query.dim() > 2 else 1
    return value if times == 1 else value.repeat_interleave(times, -3)


def _of_groups(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sum over the queries that share a head."""
    if value.shape == like.shape:
        return value
    heads = like.shape[-3]
    return value.unflatten(-3, (heads, -1)).sum(-3)

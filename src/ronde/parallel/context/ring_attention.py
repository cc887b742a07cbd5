"""Ring attention: keys and values travel around a ring of ranks.

Each rank attends with its own queries. While a rank's keys and values are used, those of the previous rank
are under way (Liu et al. 2023, "Ring Attention with Blockwise Transformers"); `attention_blocks` computes and
merges each block. Backward sends keys and values around again, followed by their gradients. So a rank keeps
its own queries, keys, values and result, and has two more blocks of keys and values at any time.

Without a ring a rank gathers all keys and values, in forward and once more in backward, and keeps its own
between (as `_RegatheredTokens` does in a tensor group).

Functions of plain tensors `[..., heads, tokens, width]`: nothing here knows how values are cut inside of a
model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.context.blockwise_attention import (
    BlockResults,
    OperandBlock,
    Operands,
    Pieces,
    attended,
    merge,
    seen,
    went_back,
)
from ronde.patching.torch_internals import FakeTensor

__all__ = ["Ring", "TokensOfAll", "attend"]

_Function: Any = torch.autograd.Function


@dataclasses.dataclass(frozen=True, slots=True)
class TokensOfAll:
    """Collectives that gather all keys of attention, and sum their gradients.

    Attributes:
        gathered: function that returns all tokens of this rank's keys or values.
        summed: function that returns the sum of all ranks' gradients of this rank's tokens.
    """

    gathered: Callable[[torch.Tensor], torch.Tensor]
    summed: Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Ranks of a ring, with the tokens of each.

    Attributes:
        comm: process group of the ring; None if this rank has all keys, or gathers them.
        queries: positions of this rank's queries, as ascending ranges.
        keys: positions of every rank's keys, likewise.
        causal: whether a query sees keys up to its own position only.
        scale: factor of products of queries and keys.
        dropout_p: dropout probability with which `kept` was drawn.
        tokens: collectives that gather keys in forward, and once more in backward; None without.
    """

    comm: Comm | None
    queries: Pieces
    keys: Sequence[Pieces]
    causal: bool
    scale: float
    dropout_p: float = 0.0
    tokens: TokensOfAll | None = None

    @property
    def rank(self) -> int:
        return 0 if self.comm is None else self.comm.rank

    def count(self, rank: int) -> int:
        """Return the number of keys of a rank."""
        return sum(stop - start for start, stop in self.keys[rank])

    def all_keys(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values with which this rank begins."""
        if self.tokens is None:
            return key, value
        return self.tokens.gathered(key), self.tokens.gathered(value)

    def operands(self, query: torch.Tensor, mask: torch.Tensor | None, kept: torch.Tensor | None) -> Operands:
        """Return the operands that stay on this rank."""
        count = sum(map(self.count, range(len(self.keys))))
        return Operands(query, mask, kept, keys=count, scale=self.scale, dropout_p=self.dropout_p)


def attend(
    ring: Ring,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend with this rank's queries to the keys of all ranks. A collective.

    Tensors are `[..., heads, tokens, width]`.

    Args:
        key, value: keys and values of this rank's tokens, of fewer heads where queries are grouped.
        mask: `[..., queries, all keys]`, or broadcast to it: True where a key is seen, or a summand of
            scores.
        kept: `[..., queries, all keys]`, True where dropout keeps.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in (query, key, value))
    if isinstance(query, FakeTensor):  # another stage of a pipeline has it
        return query @ value.transpose(-2, -1).new_empty(*query.shape[:-2], query.shape[-1], value.shape[-1])
    return _Attention.apply(ring, query, key, value, mask, kept)


class _Attention(_Function):
    """Ring attention that saves only this rank's part for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        ring: Ring,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        kept: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.ring = ring
        with _as_it_is(query):
            out, total = _forward(ring, ring.operands(query, mask, kept), *ring.all_keys(key, value))
        ctx.save_for_backward(query, key, value, mask, kept, out, total)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, mask, kept, out, total = ctx.saved_tensors
        (gradient,) = gradients
        ring: Ring = ctx.ring
        with torch.no_grad(), _as_it_is(query):
            known = BlockResults(out.detach(), total, gradient)
            made = _backward(ring, ring.operands(query, mask, kept), *ring.all_keys(key, value), known)
            if ring.tokens is not None:
                made = made[0], *map(ring.tokens.summed, made[1:])
        if torch.is_grad_enabled():
            made = _Once.apply(*(each.requires_grad_() for each in made))
        return None, *made, None, None


class _Once(_Function):
    """Identity on gradients without a second derivative."""

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UsageError(
            "attention whose keys go around a ring has no second derivative; take "
            "context-attention=gather [R252]"
        )


def _as_it_is(like: torch.Tensor) -> torch.autocast:
    """Disable autocast, so sums are taken in the types chosen here."""
    return torch.autocast(like.device.type, enabled=False)


def _forward(
    ring: Ring, own: Operands, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result, and the log-sum-exp of each query's scores."""
    query = own.query
    # It has the memory order of one device, because later draws for it follow memory order.
    if own.has_kernel(value):
        out = torch.zeros_like(query, dtype=own.wide)
    else:
        out = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=own.wide)
    total = query.new_full(query.shape[:-1], -math.inf, dtype=own.wide)
    for source, (keys, values) in _around(ring, key, value):
        for part in seen(ring.queries, ring.keys[source], causal=ring.causal):
            rows = (..., part.queries, slice(None))
            block = OperandBlock(query[rows], keys[..., part.keys, :], values[..., part.keys, :])
            made, sums = attended(own, ring.keys[source], part, block)
            merge(out[rows], total[..., part.queries], made, sums)
    return out.to(query.dtype), total


def _backward(
    ring: Ring, own: Operands, key: torch.Tensor, value: torch.Tensor, known: BlockResults
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of queries, keys and values.

    Gradients of a rank's keys and values follow these from the next rank on, and return to their rank in the
    end.
    """
    query = own.query
    # Every share is 0 for a query that sees nothing.
    total = known.total.masked_fill(known.total == -math.inf, math.inf)
    of_query = torch.zeros_like(query, dtype=own.wide)
    home = key, value
    under_way: tuple[torch.Tensor, Any] | None = None
    for source, (keys, values) in _around(ring, key, value):
        of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
        for part in seen(ring.queries, ring.keys[source], causal=ring.causal):
            rows, columns = (..., part.queries, slice(None)), (..., part.keys, slice(None))
            block = OperandBlock(query[rows], keys[columns], values[columns])
            of_it = BlockResults(known.out[rows], total[..., part.queries], known.gradient[rows])
            made = went_back(own, ring.keys[source], part, block, of_it)
            for whole, each in zip((of_query[rows], of_keys[columns], of_values[columns]), made, strict=True):
                whole.add_(each)
        if ring.comm is None or source == ring.rank:
            home = of_keys, of_values
            continue
        flat = _flat(of_keys, of_values)
        if under_way is not None:
            flat.add_(_arrived(*under_way))
        following = (source - 1) % len(ring.keys)
        under_way = ring.comm.pass_on(flat, _of_each(key, value) * ring.count(following))
    if under_way is not None:
        for mine, theirs in zip(home, _apart(_arrived(*under_way), key, value), strict=True):
            mine.add_(theirs)
    return of_query.to(query.dtype), *home


def _around(
    ring: Ring, key: torch.Tensor, value: torch.Tensor
) -> Iterator[tuple[int, tuple[torch.Tensor, torch.Tensor]]]:
    """Yield keys and values of each rank, beginning with this one's.

    The next ones are under way while these are used.
    """
    block, flat = (key, value), None
    for step in range(len(ring.keys)):
        source = (ring.rank - step) % len(ring.keys)
        following = (source - 1) % len(ring.keys)
        under_way = None
        if ring.comm is not None and step + 1 < len(ring.keys):
            flat = _flat(key, value) if flat is None else flat
            under_way = ring.comm.pass_on(flat, _of_each(key, value) * ring.count(following))
        yield source, block
        if under_way is not None:
            flat = _arrived(*under_way)
            block = _apart(flat, key, value)


def _arrived(flat: torch.Tensor, pending: Any) -> torch.Tensor:
    pending.wait()
    return flat


def _flat(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.cat([key.reshape(-1), value.reshape(-1)])


def _of_each(key: torch.Tensor, value: torch.Tensor) -> int:
    """Return how many numbers a token's keys and values have."""
    return sum(math.prod(each.shape[:-2]) * each.shape[-1] for each in (key, value))


def _apart(flat: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split another rank's keys and values, with the heads and widths of these."""
    tokens = flat.numel() // _of_each(key, value)
    shapes = [(*each.shape[:-2], tokens, each.shape[-1]) for each in (key, value)]
    first, second = flat.split([math.prod(shape) for shape in shapes])
    return first.view(shapes[0]), second.view(shapes[1])

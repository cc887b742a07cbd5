"""Attention whose keys and values go around a ring of ranks, which each attend with their own queries.

While a rank's keys and values are used, those of the one before are under way (Liu et al. 2023, "Ring
Attention with Blockwise Transformers"). Results of blocks are merged by the logarithms of their sums of
exponentials, and backward sends keys and values round again, with their gradients behind them. So a rank
keeps its own queries, keys, values and result, and has two blocks of keys and values more at any time.
Functions of plain tensors `[..., heads, tokens, width]`: nothing here knows how values are cut inside of a
model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.patching.torch_internals import FakeTensor, attention_on_cpu, attention_on_cpu_backward

__all__ = ["Ring", "Seen", "attend", "seen"]

_Function: Any = torch.autograd.Function
Pieces = Sequence[tuple[int, int]]

# A mask that adds more than this to all that a query may see takes digits from the sum of exponentials.
_ADDS_MUCH = 100.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The ranks of a ring, and which tokens each has.

    Attributes:
        comm: of the ring; None: this rank has all keys.
        queries: of this rank, as ranges of positions that rise.
        keys: of every rank, likewise.
        causal: a query sees keys up to its own position.
        scale: of products of queries and keys.
        dropout_p: with which `kept` was drawn.
    """

    comm: Comm | None
    queries: Pieces
    keys: Sequence[Pieces]
    causal: bool
    scale: float
    dropout_p: float = 0.0

    @property
    def rank(self) -> int:
        return 0 if self.comm is None else self.comm.rank

    def count(self, rank: int) -> int:
        """How many keys a rank has."""
        return sum(stop - start for start, stop in self.keys[rank])

    def columns(self, rank: int, whole: torch.Tensor) -> torch.Tensor:
        """Of a mask `[..., queries, all keys]` what concerns a rank's keys."""
        parts = [whole[..., start:stop] for start, stop in self.keys[rank]]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A part of a block that queries see.

    Attributes:
        queries, keys: as the block counts them.
        mask: of them, True where a key is seen; None: all are.
        diagonal: as many keys as queries, of which each sees its own and those before.
    """

    queries: slice
    keys: slice
    mask: torch.Tensor | None = None
    diagonal: bool = False


def seen(queries: Pieces, keys: Pieces, *, causal: bool) -> list[Seen]:
    """The parts of a block in which keys are not after all queries.

    >>> [(part.queries, part.keys) for part in seen([(0, 2), (6, 8)], [(2, 4), (4, 6)], causal=True)]
    [(slice(2, 4, None), slice(0, 4, None))]
    """
    count, width = (sum(stop - start for start, stop in pieces) for pieces in (queries, keys))
    if not count or not width:
        return []
    if not causal:
        return [Seen(slice(0, count), slice(0, width))]
    if list(queries) == list(keys):
        return [Seen(slice(0, count), slice(0, width), diagonal=True)]
    found: list[Seen] = []
    at = 0
    for start, stop in keys:
        if start == stop:
            continue
        after, first = at + stop - start, _before(queries, start)
        all_of_it = _before(queries, stop - 1)
        if (start, stop) in queries:
            all_of_it = first + stop - start
            found.append(Seen(slice(first, all_of_it), slice(at, after), diagonal=True))
        elif first < all_of_it:
            positions = _positions(queries)[first:all_of_it, None]
            mask = positions >= torch.arange(start, stop)
            found.append(Seen(slice(first, all_of_it), slice(at, after), mask))
        if all_of_it < count:
            last = found[-1] if found else None
            whole = last is not None and last.mask is None and not last.diagonal
            if last is not None and whole and last.queries.start == all_of_it:
                found[-1] = Seen(last.queries, slice(last.keys.start, after))
            else:
                found.append(Seen(slice(all_of_it, count), slice(at, after)))
        at = after
    return found


def _before(pieces: Pieces, position: int) -> int:
    """How many positions are before this one."""
    return sum(min(max(position - start, 0), stop - start) for start, stop in pieces)


def _positions(pieces: Pieces) -> torch.Tensor:
    return torch.cat([torch.arange(start, stop) for start, stop in pieces])


def attend(
    ring: Ring,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of this rank's queries to the keys of all: `[..., heads, tokens, width]`. A collective.

    Args:
        key, value: of this rank's tokens, of fewer heads where queries are grouped.
        mask: `[..., queries, all keys]`, or broadcast to it: what is seen, or what is added.
        kept: `[..., queries, all keys]`, True where dropout keeps.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in (query, key, value))
    if isinstance(query, FakeTensor):  # another stage of a pipeline has it
        return query @ value.transpose(-2, -1).new_empty(*query.shape[:-2], query.shape[-1], value.shape[-1])
    return _Attention.apply(ring, query, key, value, mask, kept)


class _Attention(_Function):
    """Keeps this rank's part alone."""

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
            out, total = _forward(_Operands(ring, query, mask, kept), key, value)
        ctx.save_for_backward(query, key, value, mask, kept, out, total)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, mask, kept, out, total = ctx.saved_tensors
        (gradient,) = gradients
        with torch.no_grad(), _as_it_is(query):
            operands = _Operands(ctx.ring, query, mask, kept)
            made = _backward(operands, key, value, _Known(out.detach(), total, gradient))
        if torch.is_grad_enabled():
            made = _Once.apply(*(each.requires_grad_() for each in made))
        return None, *made, None, None


class _Once(_Function):
    """Gradients of which there are no further ones."""

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UsageError(
            "attention whose keys go around a ring has no second derivative; take context-attention=gather"
        )


def _as_it_is(like: torch.Tensor) -> torch.autocast:
    """Inside, sums are taken in the type that is written here."""
    return torch.autocast(like.device.type, enabled=False)


class _Block(NamedTuple):
    """Operands of a part of a block."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class _Known(NamedTuple):
    """What backward knows of queries: their result, the logarithm of their sum, the result's gradient."""

    out: torch.Tensor
    total: torch.Tensor
    gradient: torch.Tensor


class _Operands:
    """What stays on this rank: queries `[batch, heads, tokens, width]`, and what is said of pairs.

    Attributes:
        base: what is taken off each query's sums, `[..., tokens, 1]`; None: nothing.
    """

    def __init__(
        self, ring: Ring, query: torch.Tensor, mask: torch.Tensor | None, kept: torch.Tensor | None
    ) -> None:
        self.ring, self.query, self.kept = ring, query, kept
        self.wide = torch.promote_types(query.dtype, torch.float32)
        self.base: torch.Tensor | None = None
        if mask is not None and mask.dtype is not torch.bool:
            most = mask.amax(-1, keepdim=True).to(self.wide)
            most = most.masked_fill(most.isinf(), 0.0)
            self.base = most if bool((most.abs() > _ADDS_MUCH).any()) else None
        self.mask = mask

    def part(self, source: int, seen: Seen) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Of a block's part the mask, and what dropout keeps."""
        mask, kept = (
            None if whole is None else _rows(self.ring.columns(source, whole), seen)
            for whole in (_widened(self.mask, self.ring), self.kept)
        )
        return (seen.mask.to(self.query.device) if seen.mask is not None else mask), kept

    def has_kernel(self, value: torch.Tensor) -> bool:
        """Whether torch has a kernel for the whole that gives the logarithm, and takes it back."""
        on_cpu = self.query.device.type == "cpu" and self.query.dim() == 4
        return on_cpu and self.kept is None and self.query.shape[-1] == value.shape[-1]


def _widened(mask: torch.Tensor | None, ring: Ring) -> torch.Tensor | None:
    """A mask with a column for each key."""
    if mask is None or mask.shape[-1] != 1:
        return mask
    return mask.expand(*mask.shape[:-1], sum(map(ring.count, range(len(ring.keys)))))


def _rows(block: torch.Tensor, seen: Seen) -> torch.Tensor:
    block = block[..., seen.keys]
    return block if block.dim() < 2 or block.shape[-2] == 1 else block[..., seen.queries, :]


def _forward(own: _Operands, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and for each query the logarithm of its sum of exponentials."""
    query, ring = own.query, own.ring
    fused = own.has_kernel(value) and own.base is None
    # It lies in memory as on one device, since what is drawn for it later runs through memory.
    if own.has_kernel(value):
        out = torch.zeros_like(query, dtype=own.wide)
    else:
        out = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=own.wide)
    total = query.new_full(query.shape[:-1], -math.inf, dtype=own.wide)
    for source, (keys, values) in _around(ring, key, value):
        for part in seen(ring.queries, ring.keys[source], causal=ring.causal):
            rows = (..., part.queries, slice(None))
            block = _Block(query[rows], keys[..., part.keys, :], values[..., part.keys, :])
            made, sums = (_fused if fused else _by_hand)(own, source, part, block)
            _merge(out[rows], total[..., part.queries], made, sums)
    return out.to(query.dtype), total


def _merge(out: torch.Tensor, total: torch.Tensor, made: torch.Tensor, sums: torch.Tensor) -> None:
    """Take a block's result into that of the blocks before, each by its share of the sum."""
    both = torch.logaddexp(total, sums)
    # Of a query that has seen nothing yet both are minus infinity.
    before, now = (torch.exp(each - both).nan_to_num_(0.0).unsqueeze(-1) for each in (total, sums))
    out.mul_(before).add_(made.to(out.dtype).mul_(now) if made.dtype != out.dtype else made.mul_(now))
    total.copy_(both)


def _backward(
    own: _Operands, key: torch.Tensor, value: torch.Tensor, known: _Known
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of queries, keys and values.

    Those of a rank's keys and values follow them from the next rank on, and come home at last.
    """
    query, ring = own.query, own.ring
    fused = own.has_kernel(value) and own.base is None
    # Of a query that sees nothing, every share is 0.
    total = known.total.masked_fill(known.total == -math.inf, math.inf)
    of_query = torch.zeros_like(query, dtype=own.wide)
    home = key, value
    under_way: tuple[torch.Tensor, Any] | None = None
    for source, (keys, values) in _around(ring, key, value):
        of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
        for part in seen(ring.queries, ring.keys[source], causal=ring.causal):
            rows, columns = (..., part.queries, slice(None)), (..., part.keys, slice(None))
            block = _Block(query[rows], keys[columns], values[columns])
            of_it = _Known(known.out[rows], total[..., part.queries], known.gradient[rows])
            made = (_fused_backward if fused else _by_hand_backward)(own, source, part, block, of_it)
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
    """Keys and values of each rank, from this one's on; the next are under way while these are used."""
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
    """How many numbers a token's keys and values are."""
    return sum(math.prod(each.shape[:-2]) * each.shape[-1] for each in (key, value))


def _apart(flat: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Another rank's keys and values, of as many heads, and as wide, as these."""
    tokens = flat.numel() // _of_each(key, value)
    shapes = [(*each.shape[:-2], tokens, each.shape[-1]) for each in (key, value)]
    first, second = flat.split([math.prod(shape) for shape in shapes])
    return first.view(shapes[0]), second.view(shapes[1])


def _added(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """What a mask adds, with four axes."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -math.inf)
    return mask.to(dtype)[(None,) * (4 - mask.dim())]


def _fused(own: _Operands, source: int, seen: Seen, block: _Block) -> tuple[torch.Tensor, torch.Tensor]:
    mask = _added(own.part(source, seen)[0], block.query.dtype)
    made, sums = attention_on_cpu(*block, 0.0, seen.diagonal, attn_mask=mask, scale=own.ring.scale)
    if mask is not None:
        # The kernel says 0 of a query that sees nothing.
        sums = sums.masked_fill((mask == -math.inf).all(-1), -math.inf)
    return made, sums


def _fused_backward(
    own: _Operands,
    source: int,
    seen: Seen,
    block: _Block,
    known: _Known,
) -> Sequence[torch.Tensor]:
    mask = _added(own.part(source, seen)[0], block.query.dtype)
    given = known.gradient, *block, known.out, known.total
    return attention_on_cpu_backward(*given, 0.0, seen.diagonal, attn_mask=mask, scale=own.ring.scale)


def _shares(
    own: _Operands, seen: Seen, mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Logarithms of what each key has of a query's attention, but for the query's sum."""
    # As torch's own computation on the CPU scales, where dropout is drawn.
    factor = math.sqrt(abs(own.ring.scale))
    signed = math.copysign(factor, own.ring.scale)
    found = (query.to(own.wide) * signed) @ (key.to(own.wide) * factor).transpose(-2, -1)
    if seen.diagonal:
        mask = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).tril()
    if mask is not None:
        found = found.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else found + mask
    return found if own.base is None else found - _base(own, seen)


def _base(own: _Operands, seen: Seen) -> torch.Tensor:
    assert own.base is not None
    return own.base if own.base.shape[-2] == 1 else own.base[..., seen.queries, :]


def _by_hand(own: _Operands, source: int, seen: Seen, block: _Block) -> tuple[torch.Tensor, torch.Tensor]:
    mask, kept = own.part(source, seen)
    query, key, value = (_for_each_query(each, block.query) for each in block)
    found = _shares(own, seen, mask, query, key)
    sums = found.logsumexp(-1)
    shares = found.sub_(sums.masked_fill(sums == -math.inf, math.inf).unsqueeze(-1)).exp_()
    if kept is not None:
        shares.mul_(kept).div_(1 - own.ring.dropout_p)
    return shares @ value.to(own.wide), sums


def _by_hand_backward(
    own: _Operands,
    source: int,
    seen: Seen,
    block: _Block,
    known: _Known,
) -> Sequence[torch.Tensor]:
    mask, kept = own.part(source, seen)
    out, total, gradient = known
    if own.base is not None and own.has_kernel(block.value):
        # One device's kernel keeps the logarithm with what the mask adds, and loses these digits.
        total = (total + _base(own, seen).squeeze(-1)) - _base(own, seen).squeeze(-1)
    query, key, value = (_for_each_query(each, block.query) for each in block)
    shares = _shares(own, seen, mask, query, key).sub_(total.unsqueeze(-1)).exp_()
    gradient = gradient.to(own.wide)
    of_shares = gradient @ value.to(own.wide).transpose(-2, -1)
    used = shares
    if kept is not None:
        factor = kept.to(own.wide).div_(1 - own.ring.dropout_p)
        used, of_shares = shares * factor, of_shares.mul_(factor)
    of_value = used.transpose(-2, -1) @ gradient
    of_found = shares.mul_(of_shares.sub_((gradient * out).sum(-1, keepdim=True))).mul_(own.ring.scale)
    of_key = of_found.transpose(-2, -1) @ query.to(own.wide)
    return of_found @ key.to(own.wide), _of_groups(of_key, block.key), _of_groups(of_value, block.value)


def _for_each_query(value: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values once for each head of queries."""
    times = query.shape[-3] // value.shape[-3] if query.dim() > 2 else 1
    return value if times == 1 else value.repeat_interleave(times, -3)


def _of_groups(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The sum over the queries that share a head."""
    if value.shape == like.shape:
        return value
    heads = like.shape[-3]
    return value.unflatten(-3, (heads, -1)).sum(-3)

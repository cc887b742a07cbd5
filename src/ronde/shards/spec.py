"""Spec of a sharded tensor: the elements that each rank of a group has.

Every way of cutting is a run of elements for each rank: ZeRO's flat shards, the blocks of tensor
parallelism, a parameter that one stage or one owner has, the rows of an embedding, the elements on a server,
and ZeRO within a block. So one class suffices for all of them; the code
that holds, gathers or updates shards asks it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import torch

from ronde.comm.process_group import Comm
from ronde.shards.dim_cut import DimCut
from ronde.sync.gradient_shards import Span

__all__ = ["ShardSpec", "Span", "blocks", "blocks_of_stage", "by_rank", "owned", "within"]


@dataclasses.dataclass(frozen=True, slots=True)
class ShardSpec:
    """A range of elements for each rank of a group.

    A sequence of spans: `spec[rank]` is that rank's, None where the rank has no element.

    Attributes:
        spans: span of each rank.
        cut: the order of elements is that of this cut; None for their order in memory.
        key: the name by which servers know the tensor; -1 where no server has any of it.
        row: elements of a row, where spans are whole rows of a matrix and gradients may be sparse.
    """

    spans: tuple[Span | None, ...]
    cut: DimCut | None = None
    key: int = -1
    row: int | None = None

    def parts(self, elements: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return views of the bytes of each rank's elements.

        Ranks without any are left out.

        Args:
            elements: all elements, flat, in the order of the spec.
        """
        return {
            rank: elements[slice(*span)].view(torch.uint8)
            for rank, span in enumerate(self.spans)
            if span is not None
        }

    def __getitem__(self, rank: int) -> Span | None:
        return self.spans[rank]

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Span | None]:
        return iter(self.spans)

    @property
    def has_copies(self) -> bool:
        """Return whether an element is on several ranks."""
        spans = sorted(span for span in self.spans if span is not None)
        return any(second[0] < first[1] for first, second in pairwise(spans))

    def of(self, ranks: Sequence[int]) -> ShardSpec:
        """Return the spec of a group with copies of these ranks."""
        return dataclasses.replace(self, spans=tuple(self.spans[rank] for rank in ranks))

    def is_first(self, rank: int) -> bool:
        """Return whether no earlier rank has the same elements as this one."""
        return self.spans.index(self.spans[rank]) == rank

    def shape(self, shape: Sequence[int], rank: int) -> list[int]:
        """Return the shape of a rank's shard of a tensor of this shape."""
        begin, end = self.spans[rank] or (0, 0)
        if end - begin == math.prod(shape):
            return list(shape)
        if self.cut is not None and end - begin == math.prod(shape) // self.cut.ranks:
            return self.cut.shape_of_block(shape)
        return [end - begin]

    def elements(self, whole: torch.Tensor) -> torch.Tensor:
        """Return all elements of a contiguous tensor, flat, in the order of the spec.

        A view where possible.
        """
        return whole.reshape(-1) if self.cut is None else self.cut.in_order(whole)

    def own(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """Return a rank's elements of a contiguous tensor, flat; a view if possible."""
        begin, end = self.spans[rank] or (0, 0)
        if begin == end:  # without copying all elements into the order of the cut
            return whole.new_empty(0)
        if self.cut is not None and end - begin == whole.numel() // self.cut.ranks:
            return self.cut.block(whole, begin * self.cut.ranks // whole.numel()).reshape(-1)
        return self.elements(whole)[begin:end]

    def gather(self, comm: Comm, part: torch.Tensor, whole: torch.Tensor) -> None:
        """Fill a contiguous tensor from the shards of all ranks. A collective.

        Args:
            part: elements of this rank, flat.
        """
        owners = [rank for rank, span in enumerate(self.spans) if span is not None]
        if self.cut is None and len({self.spans[rank] for rank in owners}) == 1:
            if self.spans[comm.rank] is not None:
                whole.view(-1).copy_(part)
            comm.broadcast(whole, owners[0])
            return
        elements = whole.view(-1) if self.cut is None else torch.empty_like(whole).view(-1)
        own = self.spans[comm.rank]
        if own is not None:
            elements[slice(*own)] = part
        comm.share([[] if span is None else [elements[slice(*span)]] for span in self.spans])
        if self.cut is not None:
            self.cut.put_back(elements, whole)


def by_rank(tensors: Iterable[Mapping[int, torch.Tensor]], ranks: int) -> list[list[torch.Tensor]]:
    """Return the parts that each rank has of several tensors, in their order.

    Args:
        tensors: the parts of each, by rank. Most ranks have none of most tensors, and are not looked at.
        ranks: number of ranks.
    """
    found: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for parts in tensors:
        for rank, part in parts.items():
            found[rank].append(part)
    return found


def blocks(cut: DimCut, shape: Sequence[int]) -> ShardSpec:
    """Make a spec with a block of the cut for each rank."""
    return ShardSpec(tuple(cut.spans(shape)), cut)


def owned(owner: int, ranks: int, numel: int) -> ShardSpec:
    """Make a spec with all elements on one rank."""
    return ShardSpec(tuple((0, numel) if rank == owner and numel else None for rank in range(ranks)))


def blocks_of_stage(
    stage: int, stages: int, shape: Sequence[int], *, ranks: int = 1, cut: DimCut | None = None
) -> ShardSpec:
    """Make a spec for one pipeline stage: a block or a copy per rank.

    Args:
        ranks: number of ranks of each stage; those of a stage follow one another in the group.
        cut: cut of the tensor among a stage's ranks, perhaps several times; None where each of them has all
            of it.
    """
    mine = [(0, math.prod(shape))] * ranks if cut is None else [*cut.spans(shape)] * (ranks // cut.ranks)
    others = [None] * ranks
    return ShardSpec((*others * stage, *mine, *others * (stages - 1 - stage)), cut)


def within(inner: Span | None, outer: Span | None) -> slice:
    """Return the slice of a longer range of elements that is the shorter range."""
    if inner is None or outer is None:
        return slice(0, 0)
    return slice(inner[0] - outer[0], inner[1] - outer[0])

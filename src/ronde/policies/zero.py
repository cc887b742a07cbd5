"""Tensors laid end to end, an equal run of elements for each rank (ZeRO; Rajbhandari et al. 2020)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec, Span, owned

__all__ = ["ALIGNMENT", "central", "in_equal_parts", "zero", "zero_within"]

ALIGNMENT = 128
"""Elements; a cut inside a tensor stands at a multiple of it.

torch's CPU kernels treat what does not fill two vector registers at the end of a tensor by other
instructions, whose last bit may differ (a product and a sum are rounded once or twice). No two registers hold
more than 128 elements, so an element of a part is treated as in the whole: the same to the bit.
"""


def zero(ranks: int) -> Partition:
    """Equal runs of elements for all ranks."""

    def split(members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        return [ShardSpec(spans) for spans in in_equal_parts([each.numel() for each in members], ranks)]

    return Partition(split)


def central(ranks: int) -> Partition:
    """All elements on rank 0, as `torch.nn.DataParallel` has them."""
    return Partition(lambda members: [owned(0, ranks, each.numel()) for each in members])


def zero_within(blocks: Partition, places: Sequence[tuple[int, int]]) -> Partition:
    """ZeRO among the ranks that have the same block of a tensor.

    Args:
        blocks: which block of a tensor a group's ranks have; a tensor that is not cut is one block for all.
        places: of each of all ranks, its place in the group, and its place among those with the same block.
    """
    return Partition(functools.partial(_split_blocks, blocks, places), blocks)


def _split_blocks(
    blocks: Partition, places: Sequence[tuple[int, int]], members: Sequence[torch.Tensor]
) -> list[ShardSpec]:
    groups = 1 + max(place for place, _ in places)
    copies = 1 + max(copy for _, copy in places)
    specs = [blocks.spec(each) for each in members]
    shares: list[list[list[Span | None]]] = []
    for place in range(groups):
        spans = [
            (0, each.numel()) if spec is None else spec[place] or (0, 0)
            for each, spec in zip(members, specs, strict=True)
        ]
        parts = in_equal_parts([end - begin for begin, end in spans], copies)
        shares.append([_moved(part, begin) for part, (begin, _) in zip(parts, spans, strict=True)])
    found: list[ShardSpec] = []
    for number, spec in enumerate(specs):
        spans = tuple(shares[place][number][copy] for place, copy in places)
        found.append(ShardSpec(spans, None if spec is None else spec.cut))
    return found


def _moved(spans: Sequence[Span | None], begin: int) -> list[Span | None]:
    return [None if span is None else (span[0] + begin, span[1] + begin) for span in spans]


def in_equal_parts(sizes: Sequence[int], ranks: int) -> list[tuple[Span | None, ...]]:
    """Cut tensors of these sizes, laid end to end, into one run of elements for each rank.

    Runs differ by at most two alignments.
    """
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    inner = [_cut(total * rank // ranks, sizes, ends) for rank in range(1, ranks)]
    runs = list(pairwise([0, *inner, total]))
    return [
        tuple(_overlap(run, end - size, end) for run in runs) for size, end in zip(sizes, ends, strict=True)
    ]


def _cut(ideal: int, sizes: Sequence[int], ends: Sequence[int]) -> int:
    """The place nearest to `ideal` where a tensor may be cut, or ends."""
    for size, end in zip(sizes, ends, strict=True):
        if ideal < end:
            begin = end - size
            below = begin + (ideal - begin) // ALIGNMENT * ALIGNMENT
            above = min(below + ALIGNMENT, end)
            return below if ideal - below <= above - ideal else above
    return ideal


def _overlap(run: Span, begin: int, end: int) -> Span | None:
    """The elements in a run of a tensor that lies from `begin` to `end`."""
    first, last = max(run[0], begin), min(run[1], end)
    return (first - begin, last - begin) if first < last else None

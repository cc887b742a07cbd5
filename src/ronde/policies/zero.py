"""ZeRO partitions: tensors end to end, an equal range of elements per rank.

ZeRO is of Rajbhandari et al. 2020.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch

from ronde.comm.split import even_offsets
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec, Span

__all__ = [
    "ALIGNMENT",
    "RUNS",
    "MeshPosition",
    "divided",
    "in_equal_parts",
    "on_first",
    "replica_spec",
    "zero_within",
]

ALIGNMENT = 128
"""Alignment in elements; a cut inside a tensor lies at a multiple of it.

torch's CPU kernels treat elements at the end of a tensor that do not fill two vector registers by other
instructions, with a result that may differ in the last bit (a product and a sum are rounded once or twice).
No two registers hold more than 128 elements, so an element of a part is treated as in the whole: bitwise the
same.
"""


Runs = Callable[[Sequence[int], int], list[tuple[Span | None, ...]]]
"""Cuts tensors of these sizes, laid end to end, for a number of ranks."""


def divided(runs: Runs, ranks: int) -> Partition:
    """Create a partition that cuts tensors of one group by `runs`."""

    def split(members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        return [ShardSpec(spans) for spans in runs([each.numel() for each in members], ranks)]

    return Partition(split)


@dataclasses.dataclass(frozen=True, slots=True)
class MeshPosition:
    """Position of a rank in a mesh that cuts models.

    Attributes:
        block: index among the ranks that have other blocks of parameters.
        replica: index among the ranks that have the same blocks.
        row: index among the ranks that share the update of whole parameters.
    """

    block: int
    replica: int
    row: int


def zero_within(
    blocks: Partition,
    whole: Partition,
    places: Sequence[MeshPosition],
    runs: Runs,
    copies: Sequence[MeshPosition] | None = None,
) -> Partition:
    """Cut each block of a tensor once more, over its replicas.

    Args:
        blocks: partition of tensors into blocks, by `MeshPosition.block`.
        whole: partition of tensors that are not in blocks, by `MeshPosition.row`.
        places: positions of all ranks.
        runs: function that cuts sizes for the replicas of a block.
        copies: positions of all ranks for a tensor with several equal blocks; `places` by default.
    """

    def split(members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        cut = [(each, spec) for each in members if (spec := blocks.spec(each)) is not None]
        copied = [(each, spec) for each, spec in cut if copies is not None and spec.has_copies]
        specs = {
            id(each): spec for (each, _), spec in zip(copied, _in_blocks(copied, copies or places, runs))
        }
        rest = [(each, spec) for each, spec in cut if id(each) not in specs]
        specs |= {id(each): spec for (each, _), spec in zip(rest, _in_blocks(rest, places, runs))}
        uncut = [each for each in members if id(each) not in specs]
        for each, spec in zip(uncut, whole.assign(uncut), strict=True):
            spans = (None,) * len(places) if spec is None else tuple(spec[place.row] for place in places)
            specs[id(each)] = ShardSpec(spans)
        return [specs[id(each)] for each in members]

    return Partition(split, blocks)


def _in_blocks(
    members: Sequence[tuple[torch.Tensor, ShardSpec]], places: Sequence[MeshPosition], runs: Runs
) -> list[ShardSpec]:
    replicas = 1 + max(place.replica for place in places)
    spans: list[list[Span | None]] = [[] for _ in members]
    for block in range(1 + max(place.block for place in places)):
        outer = [spec[block] or (0, 0) for _, spec in members]
        inner = runs([end - begin for begin, end in outer], replicas)
        for found, parts, (begin, _) in zip(spans, inner, outer, strict=True):
            found += _moved(parts, begin)
    return [
        ShardSpec(tuple(found[place.block * replicas + place.replica] for place in places), spec.cut)
        for found, (_, spec) in zip(spans, members, strict=True)
    ]


def replica_spec(nested: ShardSpec, block: Span | None, ranks: Sequence[int]) -> ShardSpec:
    """Return the elements of a block that each of its replicas has.

    Args:
        nested: the elements of the whole on all ranks, from `zero_within`.
        block: the elements of the whole in the block.
        ranks: the replicas, among all ranks.
    """
    begin = 0 if block is None else block[0]
    return ShardSpec(tuple(_moved([nested[rank] for rank in ranks], -begin)))


def _moved(spans: Sequence[Span | None], begin: int) -> list[Span | None]:
    return [None if span is None else (span[0] + begin, span[1] + begin) for span in spans]


def on_first(sizes: Sequence[int], ranks: int) -> list[tuple[Span | None, ...]]:
    """Leave all elements to the first rank."""
    return [((0, size) if size else None, *[None] * (ranks - 1)) for size in sizes]


def in_equal_parts(sizes: Sequence[int], ranks: int) -> list[tuple[Span | None, ...]]:
    """Cut tensors, laid end to end, into one range of elements per rank.

    Ranges differ by at most two alignments.
    """
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    inner = [_cut(ideal, sizes, ends) for ideal in even_offsets(total, ranks)[1:-1]]
    runs = list(pairwise([0, *inner, total]))
    return [
        tuple(_overlap(run, end - size, end) for run in runs) for size, end in zip(sizes, ends, strict=True)
    ]


def _cut(ideal: int, sizes: Sequence[int], ends: Sequence[int]) -> int:
    """Return the position nearest to `ideal` where a tensor may be cut, or ends."""
    for size, end in zip(sizes, ends, strict=True):
        if ideal < end:
            begin = end - size
            below = begin + (ideal - begin) // ALIGNMENT * ALIGNMENT
            above = min(below + ALIGNMENT, end)
            return below if ideal - below <= above - ideal else above
    return ideal


def _overlap(run: Span, begin: int, end: int) -> Span | None:
    """Return the elements of a tensor that lie in a rank's range, or None.

    All tensors lie end to end: `run` is the rank's range there, and the tensor goes from `begin` to `end`.
    """
    first, last = max(run[0], begin), min(run[1], end)
    return (first - begin, last - begin) if first < last else None


RUNS: dict[str, Runs] = {
    "zero1": in_equal_parts,
    "zero2": in_equal_parts,
    "zero3": in_equal_parts,
    "central": on_first,
}
"""Cut of the elements that each rank updates, by value of `state`, for replicated tensors."""

"""Who owns which elements of a list of tensors: a pure function of their sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate, pairwise

__all__ = ["ALIGNMENT", "Part", "partition"]

ALIGNMENT = 128
"""Elements; a cut inside a tensor stands at a multiple of it.

torch's CPU kernels treat what does not fill two vector registers at the end of a tensor by other
instructions, whose last bit may differ (a product and a sum are rounded once or twice). No two registers hold
more than 128 elements, so an element of a part is treated as in the whole: the same to the bit.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Elements `start` to `stop` of the flat tensor number `tensor`."""

    tensor: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def partition(sizes: Sequence[int], world_size: int, alignment: int = ALIGNMENT) -> list[list[Part]]:
    """Cut tensors of these sizes, laid end to end, into one run of elements for each rank.

    Runs differ by at most two alignments. A rank has at most one part of each tensor, and parts stand in the
    order of the tensors.

    Returns:
        for each rank its parts; none is empty.
    """
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    cuts = [
        0,
        *(_cut(total * rank // world_size, sizes, ends, alignment) for rank in range(1, world_size)),
        total,
    ]
    return [_parts(start, stop, sizes, ends) for start, stop in pairwise(cuts)]


def _cut(ideal: int, sizes: Sequence[int], ends: Sequence[int], alignment: int) -> int:
    """The place nearest to `ideal` where a tensor may be cut, or ends."""
    for size, end in zip(sizes, ends, strict=True):
        if ideal < end:
            begin = end - size
            below = begin + (ideal - begin) // alignment * alignment
            above = min(below + alignment, end)
            return below if ideal - below <= above - ideal else above
    return ideal


def _parts(start: int, stop: int, sizes: Sequence[int], ends: Sequence[int]) -> list[Part]:
    """What lies between two places of the run of all tensors."""
    parts: list[Part] = []
    for tensor, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        begin = end - size
        first, last = max(start, begin), min(stop, end)
        if first < last:
            parts.append(Part(tensor=tensor, start=first - begin, stop=last - begin))
    return parts

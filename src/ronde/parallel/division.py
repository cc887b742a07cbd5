"""Who updates which elements of which tensors: decided once for each, when it first comes."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch

from ronde.parallel.flat import is_dense
from ronde.parallel.units import by_kind
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.sync.gradient_parts import Ranges

__all__ = ["ALIGNMENT", "Division", "can_be_cut", "in_equal_parts", "owned_by_main"]

Split = Callable[[Sequence[int], int], list[Ranges]]

ALIGNMENT = 128
"""Elements; a cut inside a tensor stands at a multiple of it.

torch's CPU kernels treat what does not fill two vector registers at the end of a tensor by other
instructions, whose last bit may differ (a product and a sum are rounded once or twice). No two registers hold
more than 128 elements, so an element of a part is treated as in the whole: the same to the bit.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class _Assigned:
    ref: weakref.ref[torch.Tensor]
    kind: tuple[object, ...]
    ranges: Ranges


class Division:
    """Remembers, by tensor, each rank's elements.

    Args:
        split: cuts a list of sizes for a number of ranks, `in_equal_parts` or `owned_by_main`.
    """

    def __init__(self, world_size: int, split: Split) -> None:
        self._world_size = world_size
        self._split = split
        self._assigned: dict[int, _Assigned] = {}

    def ranges(self, tensor: torch.Tensor) -> Ranges | None:
        """What was decided for this tensor as it is now, if anything was."""
        assigned = self._assigned.get(id(tensor))
        if assigned is None or assigned.ref() is not tensor or assigned.kind != _kind(tensor):
            return None
        return assigned.ranges

    def assign(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        """Divide those that are new here, laid end to end by dtype and device; ranks come alike.

        Returns:
            each tensor's ranges; None for what cannot be cut anywhere.
        """
        with DisableTorchFunction():
            new = [each for each in tensors if self.ranges(each) is None and can_be_cut(each)]
            for members in by_kind(new):
                for tensor, ranges in zip(members, self.split(members), strict=True):
                    key = id(tensor)
                    weakref.finalize(tensor, self._assigned.pop, key, None).atexit = False
                    self._assigned[key] = _Assigned(weakref.ref(tensor), _kind(tensor), ranges)
            return [self.ranges(tensor) for tensor in tensors]

    def split(self, members: Sequence[torch.Tensor]) -> list[Ranges]:
        """Each rank's elements of tensors of one dtype and device."""
        return self._split([tensor.numel() for tensor in members], self._world_size)


def in_equal_parts(sizes: Sequence[int], world_size: int) -> list[Ranges]:
    """Cut tensors of these sizes, laid end to end, into one run of elements for each rank.

    Runs differ by at most two alignments.
    """
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    inner = [_cut(total * rank // world_size, sizes, ends) for rank in range(1, world_size)]
    runs = list(pairwise([0, *inner, total]))
    return [
        tuple(_within(run, end - size, end) for run in runs) for size, end in zip(sizes, ends, strict=True)
    ]


def owned_by_main(sizes: Sequence[int], world_size: int) -> list[Ranges]:
    """Rank 0 has everything."""
    others = [None] * (world_size - 1)
    return [((0, size) if size else None, *others) for size in sizes]


def _cut(ideal: int, sizes: Sequence[int], ends: Sequence[int]) -> int:
    """The place nearest to `ideal` where a tensor may be cut, or ends."""
    for size, end in zip(sizes, ends, strict=True):
        if ideal < end:
            begin = end - size
            below = begin + (ideal - begin) // ALIGNMENT * ALIGNMENT
            above = min(below + ALIGNMENT, end)
            return below if ideal - below <= above - ideal else above
    return ideal


def _within(run: tuple[int, int], begin: int, end: int) -> tuple[int, int] | None:
    """Which elements of a tensor, that lies from `begin` to `end`, are in a run."""
    first, last = max(run[0], begin), min(run[1], end)
    return (first - begin, last - begin) if first < last else None


def can_be_cut(tensor: torch.Tensor) -> bool:
    """One without dimensions is not worth it, and its state could not be told from a count of steps."""
    if not isinstance(tensor, (torch.Tensor, torch.nn.Parameter)) or tensor.is_complex():
        return False
    return bool(tensor.dim() and tensor.numel()) and is_dense(tensor)


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    with DisableTorchFunction():
        return tensor.dtype, tensor.device, tensor.shape, tensor.stride()

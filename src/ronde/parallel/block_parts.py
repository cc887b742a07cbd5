"""Who updates which elements of blocks, where ranks that have the same block share its update.

ZeRO's first stage (Rajbhandari et al. 2020) along the data axis of a mesh: a rank keeps optimizer state for
its run of the elements of the blocks that it has, and gets the others' elements when they have been updated.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.division import Division, can_be_cut, in_equal_parts
from ronde.parallel.tensor_cut import CutRanges
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.sync.gradient_parts import Ranges

__all__ = ["BlockParts"]


class BlockParts:
    """Remembers, by parameter, each rank's run of elements.

    Args:
        blocks: who has which block.
        places: for each of all ranks, which block it has, and its place among those that have the same.
        rows: those that have the same blocks as this one.
        rank: this one, among all.

    Attributes:
        places: as given.
    """

    def __init__(self, blocks: Division, places: Sequence[tuple[int, int]], rows: Comm, rank: int) -> None:
        self.places = places
        self._blocks = blocks
        self._rows = rows
        self._rank = rank
        # By id: the parameter, its blocks when it was divided, and what came of it.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Ranges | None, Ranges]] = {}

    def assign(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        """Divide those that are new here; ranks come alike. None for what cannot be cut anywhere."""
        with DisableTorchFunction():
            new = [each for each in tensors if not self.stands(each) and can_be_cut(each)]
            for tensor, ranges in zip(new, self._divide(new), strict=True):
                key = id(tensor)
                if key not in self._known:
                    weakref.finalize(tensor, self._known.pop, key, None).atexit = False
                self._known[key] = weakref.ref(tensor), self._blocks.ranges(tensor), ranges
            return [self._known[id(each)][2] if self.stands(each) else None for each in tensors]

    def stands(self, tensor: torch.Tensor) -> bool:
        """Whether it is divided, and its blocks are what they were then."""
        ref, blocks, ranges = self._known.get(id(tensor), (None, None, ()))
        if ref is None or ref() is not tensor or not _alike(blocks, self._blocks.ranges(tensor)):
            return False
        return blocks is not None or sum(_size(span) for span in set(ranges)) == tensor.numel()

    def own(self, tensor: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        """This rank's run of the elements of its block, flat."""
        return self._run(tensor, block, self._rank)

    def beside(self, tensor: torch.Tensor, block: torch.Tensor) -> list[torch.Tensor]:
        """The other elements of its block, before and behind that run."""
        own = self.own(tensor, block)
        first = own.storage_offset() - block.storage_offset()
        return [block[:first], block[first + own.numel() :]]

    def share(self, tensors: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Parameters with this rank's blocks, flat: every rank has updated its run, and gets the others'."""
        block = self.places[self._rank][0]
        owners = [rank for rank, (each, _) in enumerate(self.places) if each == block]
        owners.sort(key=lambda rank: self.places[rank][1])
        self._rows.share([[self._run(*each, rank) for each in tensors] for rank in owners])

    def _run(self, tensor: torch.Tensor, block: torch.Tensor, rank: int) -> torch.Tensor:
        _, blocks, ranges = self._known[id(tensor)]
        begin = 0 if blocks is None else (blocks[self.places[self._rank][0]] or (0, 0))[0]
        first, last = ranges[rank] or (begin, begin)
        return block[first - begin : last - begin]

    def _divide(self, tensors: Sequence[torch.Tensor]) -> list[Ranges]:
        blocks = [self._blocks.ranges(each) for each in tensors]
        count = 1 + max(block for block, _ in self.places)
        shares: list[list[Ranges]] = []
        for block in range(count):
            spans = [
                (0, each.numel()) if ranges is None else ranges[block] or (0, 0)
                for each, ranges in zip(tensors, blocks, strict=True)
            ]
            parts = in_equal_parts([_size(span) for span in spans], self._rows.world_size)
            shares.append([_moved(part, span[0]) for part, span in zip(parts, spans, strict=True)])
        found: list[Ranges] = []
        for number, ranges in enumerate(blocks):
            spans = tuple(shares[block][number][row] for block, row in self.places)
            found.append(CutRanges(ranges.cut, spans) if isinstance(ranges, CutRanges) else spans)
        return found


def _alike(one: Ranges | None, other: Ranges | None) -> bool:
    return one == other and getattr(one, "cut", None) == getattr(other, "cut", None)


def _size(span: tuple[int, int] | None) -> int:
    return 0 if span is None else span[1] - span[0]


def _moved(ranges: Ranges, begin: int) -> Ranges:
    return tuple(None if each is None else (each[0] + begin, each[1] + begin) for each in ranges)

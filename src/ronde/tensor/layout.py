"""Cut of a global tensor: the rows of its batch axis on each rank.

Pure functions and frozen values; nothing here communicates.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch

from ronde.comm.split import even_part

__all__ = ["Layout", "Pieces", "RowRange", "joined", "memory_order"]


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Dimensions from the slowest to the fastest in memory.

    Random fills run through memory, so a replica of a single-device tensor must have the same order in
    memory.
    """
    return sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), tensor.shape[dim]), reverse=True)


def joined(parts: Sequence[torch.Tensor], dim: int, order: list[int]) -> torch.Tensor:
    """Concatenate tensors along a dimension.

    Args:
        order: dimensions of the result from the slowest to the fastest in memory.
    """
    whole = torch.cat([part.permute(order) for part in parts], order.index(dim))
    return whole.permute([order.index(each) for each in range(len(order))])


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Position of the batch in a tensor, and its cut over ranks.

    Dimension `dim` has `outer * rows * inner` entries; entry `(o, row, i)` belongs to the rank that
    holds `row`. `outer` and `inner` are 1 unless other dimensions were flattened into this one:
    `[B, T, V].view(-1, V)` has `inner = T`, `[T, B, V].view(-1, V)` has `outer = T`.

    Rows that are `mirrored` are cut into twice as many pieces as there are ranks, and rank r holds piece r
    from either end: causal attention then costs each rank as much. Of rows with an `owner` that rank holds
    all.
    """

    dim: int
    rows: int
    world_size: int
    outer: int = 1
    inner: int = 1
    mirrored: bool = False
    owner: int | None = None

    @property
    def size(self) -> int:
        """Global length of the dimension."""
        return self.outer * self.rows * self.inner

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return first and end row of `rank`, which holds all rows between them."""
        assert not self.mirrored, "these have two pieces"
        if self.owner is not None:
            return 0, self.rows if rank == self.owner else 0
        return even_part(self.rows, self.world_size, rank)

    def ranges(self, rank: int) -> list[tuple[int, int]]:
        """Return first and end row of each piece of `rank`, in their order.

        >>> [Layout(0, 8, 2, mirrored=True).ranges(rank) for rank in range(2)]
        [[(0, 2), (6, 8)], [(2, 4), (4, 6)]]
        """
        if not self.mirrored:
            return [self.bounds(rank)]
        last = 2 * self.world_size - 1
        return [even_part(self.rows, last + 1, piece) for piece in (rank, last - rank)]

    def count(self, rank: int) -> int:
        """Return the number of rows that `rank` holds."""
        return sum(stop - start for start, stop in self.ranges(rank))

    def counts(self) -> set[int]:
        """Return the different numbers of rows that ranks hold.

        >>> Layout(0, 10, 4).counts()
        {2, 3}
        """
        if self.mirrored or self.owner is not None:
            return {self.count(rank) for rank in range(self.world_size)}
        # No rank is looked at: this is asked in every step, of thousands of ranks.
        return {self.rows // self.world_size, -(-self.rows // self.world_size)}

    def place(self, row: int, rank: int) -> int | None:
        """Return the local index of a row on `rank`; None if it is elsewhere."""
        before = 0
        for start, stop in self.ranges(rank):
            if start <= row < stop:
                return before + row - start
            before += stop - start
        return None

    def local_size(self, rank: int) -> int:
        """Return the length of the dimension on `rank`."""
        return self.outer * self.count(rank) * self.inner

    def global_shape(self, local_shape: Sequence[int]) -> list[int]:
        """Return the global shape, given the shape of one rank's shard."""
        shape = list(local_shape)
        shape[self.dim] = self.size
        return shape

    def at(self, dim: int) -> Layout:
        """Return the same cut for another dimension."""
        return self if dim == self.dim else _at(self, dim)

    def same_cut(self, other: Layout) -> bool:
        """Return whether two tensors hold the same rows on each rank, in any dimension."""
        mine = self.rows, self.outer, self.inner, self.mirrored, self.owner
        return mine == (other.rows, other.outer, other.inner, other.mirrored, other.owner)

    def take(self, full: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the rows of `rank`, a view of `full` where one exists."""
        split = self._split(full, self.rows)
        dim = self.dim + (self.outer > 1)
        parts = [
            split.narrow(dim, start * self._step, (stop - start) * self._step)
            for start, stop in self.ranges(rank)
        ]
        return self._flat(parts[0] if len(parts) == 1 else joined(parts, dim, memory_order(parts[0])))

    def assemble(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join the shards of all ranks, in rank order, to the whole tensor."""
        dim = self.dim + (self.outer > 1)
        pieces: list[tuple[int, torch.Tensor]] = []
        for rank, part in enumerate(parts):
            split, ranges = self._split(part, self.count(rank)), self.ranges(rank)
            lengths = [(stop - start) * self._step for start, stop in ranges]
            begins = (start for start, _ in ranges)
            # A single piece is not split into a view: in backward that would be a copy.
            parts_of_it = (split,) if len(ranges) == 1 else split.split(lengths, dim)
            pieces += zip(begins, parts_of_it, strict=True)
        pieces.sort(key=lambda each: each[0])
        return self._flat(torch.cat([piece for _, piece in pieces], dim))

    @property
    def _step(self) -> int:
        """Adjacent entries of a row in the dimension that `_split` gives."""
        return self.inner if self.outer == 1 else 1

    def _split(self, tensor: torch.Tensor, rows: int) -> torch.Tensor:
        return tensor if self.outer == 1 else tensor.unflatten(self.dim, (self.outer, rows, self.inner))

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.outer == 1 else tensor.flatten(self.dim, self.dim + 2)


@functools.lru_cache(maxsize=4096)
def _at(layout: Layout, dim: int) -> Layout:
    return dataclasses.replace(layout, dim=dim)


@dataclasses.dataclass(frozen=True, slots=True)
class RowRange(Layout):
    """A cut with only rows `start` to `stop` present, a piece of one rank's."""

    start: int = 0
    stop: int = 0

    def bounds(self, rank: int) -> tuple[int, int]:
        return self.start, self.stop


@dataclasses.dataclass(frozen=True, slots=True)
class Pieces(Layout):
    """One rank's rows, `start` to `stop`, cut into `world_size` micro-batches.

    >>> cut = Pieces(0, 7, 2, start=3, stop=7)
    >>> cut.bounds(0), cut.bounds(1)
    ((3, 5), (5, 7))
    """

    start: int = 0
    stop: int = 0

    def bounds(self, rank: int) -> tuple[int, int]:
        first, last = even_part(self.stop - self.start, self.world_size, rank)
        return self.start + first, self.start + last

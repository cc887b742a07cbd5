"""Creates buckets by the kind of gradients: whole, in shards, compressed, sparse."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, final

import torch

from ronde.comm.buffer import Buffer
from ronde.comm.process_group import Comm
from ronde.sync.bucket import Bucket
from ronde.sync.bucket_memory import GradientMemory
from ronde.sync.cut_bucket import CutBucket
from ronde.sync.gradient_shards import ScatteredGradients
from ronde.sync.leaf import Leaf
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.sparse_bucket import SparseBucket

__all__ = ["Allocate", "BucketFactory", "Compress"]

Allocate = Callable[[Sequence[tuple[int, torch.dtype]], Sequence[torch.device]], Sequence[Buffer]]
"""Allocates buffers of these numbers of elements and dtypes, on these devices."""

Compress = Callable[[Sequence[Leaf], Any, GradientMemory], "Bucket | None"]
"""Creates a compressed bucket of an optimizer's leaves, or None."""


@final
class BucketFactory:
    """Creates the buckets of a reducer.

    Args:
        comm: process group of the reducer.
        memory: registry of the buckets' memory.
        compress: factory of compressed buckets; None where all gradients are sent uncompressed.

    Attributes:
        parts: store for shards of dense gradients, or None.
        rows: store for gradients of rows that are spread over ranks, or None.
        allocate: allocator of buckets with gradients that every rank has.
        encoded: function that returns ids of leaves whose gradients may be compressed; None where all may.
    """

    def __init__(self, comm: Comm, memory: GradientMemory, compress: Compress | None) -> None:
        self._comm = comm
        self._memory = memory
        self.compress = compress
        self.allocate: Allocate = comm.allocate
        self.parts: ScatteredGradients | None = None
        self.rows: ReducedGradients | None = None
        self.encoded: Callable[[], Collection[int] | None] = lambda: None

    def create(self, cut: list[list[Leaf]], optimizer: Any) -> list[Bucket]:
        """Create buckets of these leaves. A collective."""
        parts = self.parts
        # On one rank the average exists already, without memory to send it from.
        if not cut or (self._comm.world_size == 1 and parts is None):
            return []
        leaves = [leaf for members in cut for leaf in members if leaf.sparse]
        sparse = [SparseBucket(leaf, self._comm, self._memory, self.rows) for leaf in leaves]
        cut = [dense for members in cut if (dense := [leaf for leaf in members if not leaf.sparse])]
        if parts is not None:
            return [*(CutBucket(members, self._comm, parts, self._memory) for members in cut), *sparse]
        encoded: list[Bucket] = []
        if self.compress is not None:
            plain, may_be = self._parted(cut)
            made = [(members, self.compress(members, optimizer, self._memory)) for members in may_be]
            encoded = [bucket for _, bucket in made if bucket is not None]
            cut = plain + [members for members, bucket in made if bucket is None]
        shapes = [(Bucket.size(members), members[0].dtype) for members in cut]
        buffers = self.allocate(shapes, [members[0].device for members in cut]) if cut else []
        dense = [Bucket(*each, self._memory) for each in zip(cut, buffers, strict=True)]
        # They come last: before other buckets they would delay these.
        return [*dense, *encoded, *sparse]

    def _parted(self, cut: list[list[Leaf]]) -> tuple[list[list[Leaf]], list[list[Leaf]]]:
        """Split leaves into uncompressed ones and ones that may be compressed."""
        known = self.encoded()
        if known is None:
            return [], cut
        both = (
            [[leaf for leaf in members if (id(leaf.tensor) in known) is chosen] for members in cut]
            for chosen in (False, True)
        )
        plain, may_be = ([members for members in each if members] for each in both)
        return plain, may_be

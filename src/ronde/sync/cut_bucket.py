"""Bucket with a reduce-scatter: each rank keeps its shard of the mean gradient.

The sum of this rank's shard lies in the same memory in each step; the rest of a gradient is freed when it has
been sent (ZeRO stage 2, Rajbhandari et al. 2020). A gradient that was whole before backward began stays
whole: the script may know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ronde.comm.buffer import FlatStorage
from ronde.comm.process_group import Comm
from ronde.sync.bucket import Bucket
from ronde.sync.bucket_memory import GradientMemory, standing_memory
from ronde.sync.gradient_shards import ReduceTarget, Wait
from ronde.sync.leaf import Leaf
from ronde.trace.resident import Census

__all__ = ["CutBucket"]


class CutBucket(Bucket):
    """Averages some leaves' gradients, and leaves each rank its shard. All leaves have one dtype and device.

    Args:
        leaves: leaves in the order in which backward is expected to reach them; all are alive on every rank.
        parts: store of shards, which knows the owner of each element.
    """

    waits = True

    def __init__(
        self, leaves: Sequence[Leaf], comm: Comm, parts: ReduceTarget, memory: GradientMemory
    ) -> None:
        super().__init__(leaves, None, memory)
        self._comm = comm
        self._parts = parts
        self._divided = parts.divide(self.tensors)
        # Of each leaf the owners that have elements, few of all: they are gone through in each step.
        self._holders = [
            [(owner, span) for owner, span in enumerate(spans or ()) if span is not None]
            for spans in self._divided
        ]
        own = [spans[parts.owner] or (0, 0) for spans in self._divided if spans is not None]
        count = 0 if parts.leave_device else sum(stop - start for start, stop in own)
        # Memory without a write costs nothing: pages come with the first sum.
        self._room = FlatStorage(standing_memory(count, leaves[0].dtype, leaves[0].device))
        self._used = False
        self._forget()

    def begin(self, *, graph: bool = False) -> None:
        super().begin()
        if graph:  # gradients have a graph of their own, which is that of the whole
            self._before |= set(range(len(self.leaves)))

    @torch.no_grad()
    def launch(self) -> None:
        """Start the reduction; missing gradients count as zero."""
        if self.launched:
            self._keep()  # the sums that were sent before, in this same backward
        gradients = [leaf.gradient for leaf in self.leaves]
        whole = [place for place, spans in enumerate(self._divided) if spans is None or place in self._before]
        self._whole = [(place, self._laid_out(place, gradients[place])) for place in whole]
        self._places_cut = [place for place in range(len(self.leaves)) if place not in set(whole)]
        elements = {place: self._laid_out(place, gradients[place]) for place in self._places_cut}
        owners = max((len(each) for each in self._divided if each is not None), default=0)
        pieces: list[list[torch.Tensor]] = [[] for _ in range(owners)]
        for place in self._places_cut:
            for owner, span in self._holders[place]:
                pieces[owner].append(elements[place][slice(*span)])
        # A gradient that exists without having been accumulated was written by the script's code in this
        # backward.
        given = {place for place in self._places_cut if gradients[place] is not None}
        for place in given:
            self.leaves[place].gradient = None
        del elements, gradients
        flags = [place in self._ready or place in given for place in range(len(self.leaves))]
        self._flags = torch.tensor(flags, dtype=torch.int32, device=self._comm.control_device)
        self.launched = True
        self._pending = [self._comm.all_reduce_async(self._flags)]
        own = dict(self._spans(self._parts.owner)).values()
        self._sum = self._memory_for(sum(stop - start for start, stop in own))
        cut = [spans for place in self._places_cut if (spans := self._divided[place]) is not None]
        self._pending.append(self._parts.reduce(cut, self._sum, pieces))
        self._pending += [self._comm.all_reduce_async(flat) for _, flat in self._whole]

    def advance(self) -> bool:
        """Start to send shards that live on the host.

        The launch is complete: the collective needs no further calls.
        """
        if self._parts.leave_device:
            self._send_home()
        return True

    @torch.no_grad()
    def _send_home(self) -> None:
        self.reduce()
        if self._sum is not None:
            self._mean = self._parts.send_home(self._sum.div_(self._comm.world_size))
            self._sum = None

    def reduce(self) -> None:
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def collect(self) -> None:
        """Return at once: each rank has its shard already."""

    def settle(self) -> None:
        """Return at once: other ranks do not use memory of this rank."""

    def deliver(self) -> list[torch.Tensor]:
        """Store this rank's shards of the averages."""
        self._keep()
        self.reset()
        return []

    def take_over(self, known: set[int]) -> None:
        """Ignore the call: no gradient lies in a bucket's memory."""

    def tell(self, census: Census, *, on_the_way: bool) -> None:
        """Count the memory of shards, and of whole gradients under reduction."""
        if self._used:
            census.count("gradients", self._room.tensor)
            census.outside(self._room.tensor)
        for flat in [self._sum, self._mean, *(flat for _, flat in self._whole)]:
            if flat is not None:
                census.count("buckets", flat)

    def reset(self) -> None:
        super().reset()
        self._forget()

    def _forget(self) -> None:
        # This rank's elements of the sum over ranks, then of the mean, at the home of shards.
        self._sum: torch.Tensor | None = None
        self._mean: torch.Tensor | None = None
        self._places_cut: list[int] = []
        self._whole: list[tuple[int, torch.Tensor]] = []
        self._pending: list[Wait] = []

    @torch.no_grad()
    def _keep(self) -> None:
        computed = set(self._computed_somewhere())
        self._send_home()
        self._parts.wait_for_sent()
        mean: Any = self._mean
        own = dict(self._spans(self._parts.owner))
        begin = 0
        for place in self._places_cut:
            start, stop = own.get(place, (0, 0))
            part = mean[begin : begin + stop - start]
            begin += stop - start
            spans = self._divided[place]
            if spans is not None and place in computed:
                self._parts.add(self.leaves[place], spans, part)
        for place, flat in self._whole:
            leaf = self.leaves[place]
            if place not in computed or leaf.tensor is None:
                continue
            average = flat.div_(self._comm.world_size).as_strided(leaf.shape, leaf.stride)
            gradient = leaf.gradient
            if gradient is None:
                leaf.gradient = average
            else:
                gradient.copy_(average)

    def _spans(self, owner: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the places and ranges of an owner's elements, one for each sharded leaf."""
        for place in self._places_cut:
            spans = self._divided[place]
            span = None if spans is None else spans[owner]
            if span is not None:
                yield place, span

    def _laid_out(self, place: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Return a gradient's elements, flat, in the memory order of its leaf."""
        leaf = self.leaves[place]
        count = leaf.shape.numel()
        if gradient is None:
            return torch.zeros(count, dtype=leaf.dtype, device=leaf.device)
        bare = gradient.detach()
        if bare.stride() != leaf.stride or place in self._before:
            ordered = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
            bare = ordered.copy_(bare)
        return bare.as_strided((count,), (1,), bare.storage_offset())

    def _memory_for(self, count: int) -> torch.Tensor:
        """Return memory for this rank's sums, the same at each step.

        It is new memory while shards lie in the usual one.
        """
        whole = self._room.tensor
        if whole.numel() < count or self._room.users():
            return torch.empty(count, dtype=whole.dtype, device=whole.device)
        self._used = True
        return whole[:count]

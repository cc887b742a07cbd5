"""Gradient bucket: a flat buffer that is reduced as a whole, and keeps gradients.

After the gradients follows one presence flag for each: the number of ranks that computed it in this backward.
A gradient that no rank computed stays untouched, `None` included.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from ronde.comm.buffer import Buffer, Source
from ronde.errors import UsageError
from ronde.patching.torch_internals import foreach_copy_
from ronde.sync.bucket_memory import GradientMemory
from ronde.sync.leaf import Leaf, give_gradient, gradient_of, gradients_of
from ronde.sync.parameter_name import parameter_name
from ronde.trace.resident import Census

__all__ = ["Bucket", "assign_buckets", "average"]

# Elements that a rank sums itself are not copied into its buffer if they are this large.
_LARGE = 64 << 10


class Bucket:
    """Averages the gradients of some leaves of one dtype and device.

    A new gradient of this backward becomes a view of the buffer; an earlier one is written in place, because
    the script may hold it.

    Args:
        leaves: leaves in the order in which backward is expected to reach them.
        buffer: memory of `Bucket.size(leaves)` elements; None for a kind of bucket without one.
        memory: registry of the memory in which gradients lie.

    Attributes:
        waits: whether a launch may wait for the other ranks.
        encodes: whether gradients are compressed with loss.
    """

    waits = False
    encodes = False

    def __init__(self, leaves: Sequence[Leaf], buffer: Buffer | None, memory: GradientMemory) -> None:
        self.leaves = list(leaves)
        self._buffer: Any = buffer
        self._memory = memory
        self._told = False
        self._sizes = [leaf.shape.numel() for leaf in self.leaves]
        self._begins = list(itertools.accumulate(self._sizes, initial=0))
        self._own = [self._part_of(place) for place in range(len(self.leaves))]
        self._places = {id(leaf.tensor): place for place, leaf in enumerate(self.leaves)}
        self._ready: set[int] = set()
        # Leaves that get nothing more in this backward, computed or not.
        self._passed: set[int] = set()
        # Gradients that existed when backward began, and among them the gradients in the buffer.
        self._before: set[int] = set()
        self._inside: set[int] = set()
        self._views: list[torch.Tensor] = []
        self._flags: torch.Tensor | None = None
        # Views and flags in the buffer's own memory, which stay valid at every step.
        self._standing: tuple[list[torch.Tensor], torch.Tensor] | None = None
        self.launched = False
        self.stale = False

    @staticmethod
    def size(leaves: Sequence[Leaf]) -> int:
        """Return the number of elements of these leaves' buffer."""
        return sum(leaf.shape.numel() for leaf in leaves) + len(leaves)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Leaves that are still alive."""
        found = [leaf.tensor for leaf in self.leaves]
        return [tensor for tensor in found if tensor is not None]

    @property
    def complete(self) -> bool:
        """True once every gradient has been computed in this backward."""
        return len(self._ready) == len(self.leaves)

    @property
    def early(self) -> bool:
        """True if the bucket may be sent before backward ends.

        Backward accumulates into an existing gradient in place, in the buffer itself, which must not be
        changed after it was sent.
        """
        return len(self._ready | self._passed) == len(self.leaves) and not self._before

    @property
    def touched(self) -> bool:
        return bool(self._ready)

    def begin(self, *, graph: bool = False) -> None:
        """Prepare for a backward.

        Args:
            graph: whether gradients will be differentiable themselves.
        """
        found = gradients_of(self.leaves)
        self._before = {place for place, gradient in enumerate(found) if gradient is not None}

    def mark(self, tensor: torch.Tensor) -> None:
        """Record that a gradient has been accumulated.

        After the bucket was sent, the sent values are `stale`.

        Raises:
            UsageError: the gradient is sparse, and no embedding has announced it.
        """
        place = self._places[id(tensor)]
        gradient = gradient_of(tensor)
        if gradient is not None and gradient.layout != torch.strided:
            raise UsageError(
                f"{parameter_name(tensor)} has a sparse gradient that is not from an embedding with "
                f"sparse=True; no plan averages it over ranks: make it dense (sparse_grad=False, a dense "
                f"matrix), or use --ranks 1 [R378]"
            )
        if self.launched:
            self.stale = True
        self._ready.add(place)

    def pass_by(self, tensor: torch.Tensor) -> None:
        """Expect nothing more for this leaf in this backward."""
        self._passed.add(self._places[id(tensor)])

    @torch.no_grad()
    def launch(self) -> None:
        """Start the reduction; missing gradients count as their old value, or as zero."""
        self._views = []
        gradients = gradients_of(self.leaves)
        inside = {place for place in self._before if self._lies_inside(place, gradients[place])}
        ours = 0 if self._standing is None else len(self._standing[0]) + 1
        flat, same = self._opened(len(inside) + ours)
        self._inside = inside if same else set()
        if not same:
            self._standing = None
            self._views, self._flags = self._cut(flat)
        else:
            self._standing = self._standing or self._cut(flat)
            self._views, self._flags = self._standing
        left = self._fill(flat, gradients)
        if self.complete:
            self._flags.fill_(1)
        else:
            flags = [float(place in self._ready) for place in range(len(self.leaves))]
            self._flags.copy_(torch.tensor(flags, dtype=self._flags.dtype))
        self.launched = True
        self._buffer.launch(left)

    def _fill(self, flat: torch.Tensor, gradients: Sequence[torch.Tensor | None]) -> list[Source]:
        """Copy into the buffer the elements that other ranks read.

        Returns:
            Elements that only this rank reads, which stay where they are, each with its place.
        """
        left: list[Source] = []
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for place, (view, gradient) in enumerate(zip(self._views, gradients, strict=True)):
            if gradient is None:
                view.zero_()
            elif place in self._inside:
                continue
            elif (own := self._own[place]) is None or not self._lies_alike(place, gradient):
                targets.append(view)
                sources.append(gradient)
            else:
                begin, size = self._begins[place], self._sizes[place]
                dense = gradient.detach().as_strided((size,), (1,))
                left.append((begin + own[0], dense[own[0] : own[1]]))
                for start, stop in ((0, own[0]), (own[1], size)):
                    if start < stop:
                        targets.append(flat[begin + start : begin + stop])
                        sources.append(dense[start:stop])
        if sources:
            foreach_copy_(targets, sources)
        return left

    def advance(self) -> bool:
        """Continue without waiting; return whether the launch is complete."""
        return self._buffer.advance()

    def deliver(self) -> list[torch.Tensor]:
        """Put the averages where the gradients were.

        Returns:
            The leaves whose gradient is a view of the buffer from now on.
        """
        given: list[torch.Tensor] = []
        computed = range(len(self.leaves)) if self.complete else self._computed_somewhere()
        for place in computed:
            tensor = self.leaves[place].tensor
            if tensor is None or place in self._inside:
                continue
            gradient = gradient_of(tensor)
            if gradient is not None and (place in self._before or gradient.requires_grad):
                with torch.no_grad():
                    gradient.copy_(self._views[place])
            else:
                # A tensor of its own: another reference to it counts as a user of the buffer.
                give_gradient(tensor, self._views[place].detach())
                given.append(tensor)
        self.reset()
        return given

    @torch.no_grad()
    def take_over(self, known: set[int]) -> None:
        """Move the gradients of leaves with these ids into this new buffer."""
        views, _ = self._cut(self._opened(0)[0])
        for leaf, view in zip(self.leaves, views, strict=True):
            tensor = leaf.tensor
            gradient = leaf.gradient
            if tensor is not None and gradient is not None and id(tensor) in known:
                leaf.gradient = view.copy_(gradient)

    def tell(self, census: Census, *, on_the_way: bool) -> None:
        """Count the buffer: elements of gradients as gradients, the rest as bucket memory.

        Args:
            on_the_way: whether backward has computed gradients that are not averaged yet.
        """
        itemsize = self.leaves[0].dtype.itemsize
        census.count_at("buckets", self._buffer.address, Bucket.size(self.leaves) * itemsize)
        for place, leaf in enumerate(self.leaves):
            if leaf.tensor is None:
                continue
            gradient = leaf.gradient
            if on_the_way or gradient is None or self._lies_inside(place, gradient):
                census.add("gradients", leaf.bytes)
                census.add("buckets", -leaf.bytes)

    def reset(self) -> None:
        """Discard the state of this backward."""
        self._ready.clear()
        self._passed.clear()
        self._before.clear()
        self._views, self._flags = [], None
        self.launched = False
        self.stale = False

    def reduce(self) -> None:
        """Wait for all ranks' contributions; see `Buffer` for this and the next two."""
        self._buffer.reduce()

    def collect(self) -> None:
        self._buffer.collect()

    def settle(self) -> None:
        self._buffer.settle()

    def _opened(self, users: int) -> tuple[torch.Tensor, bool]:
        """Open the buffer; return the memory to fill, and whether it is the buffer's."""
        flat, same = self._buffer.open(users)
        if not (same and self._told):
            self._memory.add(flat)
            self._told = True
        return flat, same

    def _lies_inside(self, place: int, gradient: torch.Tensor | None) -> bool:
        """Return whether this gradient is still the view of the buffer at this place."""
        if gradient is None:
            return False
        there = self._buffer.address + self._begins[place] * self.leaves[place].dtype.itemsize
        return gradient.data_ptr() == there and self._lies_alike(place, gradient)

    def _lies_alike(self, place: int, gradient: torch.Tensor) -> bool:
        """Return whether this gradient has the strides and dtype of the buffer."""
        leaf = self.leaves[place]
        return gradient.stride() == leaf.stride and gradient.dtype is leaf.dtype

    def _part_of(self, place: int) -> tuple[int, int] | None:
        """Return the range of this gradient that the rank sums itself, if large."""
        if self._buffer is None:
            return None
        begin, size = self._begins[place], self._sizes[place]
        start, stop = (min(max(each - begin, 0), size) for each in self._buffer.own)
        dtype = self.leaves[place].dtype
        worth = (stop - start) * dtype.itemsize >= _LARGE and not dtype.is_complex
        return (start, stop) if worth else None

    def _computed_somewhere(self) -> list[int]:
        flags: Any = self._flags
        return [place for place, count in enumerate(flags.tolist()) if abs(count) > 0]

    def _cut(self, flat: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Split the buffer into one tensor per gradient, and the flags.

        They are not views to autograd, as scripts detach gradients in place.
        """
        *pieces, flags = flat.split([*self._sizes, len(self._sizes)])
        views = [
            piece.as_strided(leaf.shape, leaf.stride).detach()
            for piece, leaf in zip(pieces, self.leaves, strict=True)
        ]
        return views, flags


def average(buckets: Sequence[Bucket]) -> None:
    """Wait for launched reductions; every bucket then holds the mean."""
    for bucket in buckets:
        bucket.reduce()
    for bucket in buckets:
        bucket.collect()
    for bucket in buckets:
        bucket.settle()


def assign_buckets(leaves: Sequence[Leaf], first_bytes: int, bucket_bytes: int) -> list[list[Leaf]]:
    """Split `leaves` into buckets, in order, with one dtype and device in each.

    The first is small, so communication starts early in backward (as in PyTorch DDP, Li et al. 2020).
    """
    buckets: list[list[Leaf]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[Leaf], int]] = {}
    for leaf in leaves:
        kind = (leaf.dtype, leaf.device)
        members, size = open_buckets.get(kind, ([], 0))
        members.append(leaf)
        size += leaf.bytes
        limit = first_bytes if not buckets else bucket_bytes
        if size >= limit:
            buckets.append(members)
            open_buckets.pop(kind, None)
        else:
            open_buckets[kind] = (members, size)
    buckets.extend(members for members, _ in open_buckets.values())
    return buckets

"""A bucket: gradients that travel together in one flat buffer, and lie there afterwards.

Behind the gradients lies one presence flag for each: how many ranks computed it in this backward. A
gradient that no rank computed stays untouched, `None` included.
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

# What a rank sums itself is not copied into its buffer, where it is so large that this is worth the trouble.
_LARGE = 64 << 10


class Bucket:
    """Averages the gradients of some leaves of one dtype and device.

    A gradient that backward made anew becomes a view of the buffer; one that was there before is
    written where it is, because the script may know it.

    Args:
        leaves: in the order in which backward is expected to reach them.
        buffer: `Bucket.size(leaves)` elements; None for a kind of bucket that does without.
        memory: is told where gradients lie.

    Attributes:
        waits: a launch may wait for the other ranks.
        encodes: gradients lose something on their way.
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
        # Those to which nothing comes any more in this backward, computed or not.
        self._passed: set[int] = set()
        # Gradients that were there when backward began; those of them that lie in the buffer.
        self._before: set[int] = set()
        self._inside: set[int] = set()
        self._views: list[torch.Tensor] = []
        self._flags: torch.Tensor | None = None
        # Both of the buffer's own memory, as they are there at every step.
        self._standing: tuple[list[torch.Tensor], torch.Tensor] | None = None
        self.launched = False
        self.stale = False

    @staticmethod
    def size(leaves: Sequence[Leaf]) -> int:
        """How many elements the buffer of these leaves has."""
        return sum(leaf.shape.numel() for leaf in leaves) + len(leaves)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are there still."""
        found = [leaf.tensor for leaf in self.leaves]
        return [tensor for tensor in found if tensor is not None]

    @property
    def complete(self) -> bool:
        """Every gradient has been computed in this backward."""
        return len(self._ready) == len(self.leaves)

    @property
    def early(self) -> bool:
        """May leave before backward ends.

        What is accumulated on an earlier gradient is accumulated in the buffer itself, which must
        not be touched any more once it has left.
        """
        return len(self._ready | self._passed) == len(self.leaves) and not self._before

    @property
    def touched(self) -> bool:
        return bool(self._ready)

    def begin(self, *, graph: bool = False) -> None:
        """A backward begins; `graph`: gradients will be differentiable themselves."""
        found = gradients_of(self.leaves)
        self._before = {place for place, gradient in enumerate(found) if gradient is not None}

    def mark(self, tensor: torch.Tensor) -> None:
        """A gradient has been accumulated; after the bucket left, what was sent is `stale`.

        Raises:
            UsageError: for a sparse gradient, unless an embedding has announced it.
        """
        place = self._places[id(tensor)]
        gradient = gradient_of(tensor)
        if gradient is not None and gradient.layout != torch.strided:
            raise UsageError(
                f"{parameter_name(tensor)} has a sparse gradient that is not from an embedding with "
                f"sparse=True; no plan averages it over ranks: make it dense (sparse_grad=False, a dense "
                f"matrix), or use --ranks 1"
            )
        if self.launched:
            self.stale = True
        self._ready.add(place)

    def pass_by(self, tensor: torch.Tensor) -> None:
        """Expect nothing more for this leaf in this backward."""
        self._passed.add(self._places[id(tensor)])

    @torch.no_grad()
    def launch(self) -> None:
        """Send what is there; gradients that are missing count as they stand, or as zero."""
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
        """Copy into the buffer what others will read; what is left where it is, as this rank alone will."""
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
        """Go on with what needs no waiting; whether that was the last of it."""
        return self._buffer.advance()

    def deliver(self) -> list[torch.Tensor]:
        """The averages are there: put them where the gradients were.

        Returns:
            the leaves whose gradient is a view of the buffer from now on.
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
                # A tensor of its own: who keeps it is counted as a user of the buffer.
                give_gradient(tensor, self._views[place].detach())
                given.append(tensor)
        self.reset()
        return given

    @torch.no_grad()
    def take_over(self, known: set[int]) -> None:
        """Let the gradients of the leaves with these ids lie in this buffer, which is new."""
        views, _ = self._cut(self._opened(0)[0])
        for leaf, view in zip(self.leaves, views, strict=True):
            tensor = leaf.tensor
            gradient = leaf.gradient
            if tensor is not None and gradient is not None and id(tensor) in known:
                leaf.gradient = view.copy_(gradient)

    def tell(self, census: Census, *, on_the_way: bool) -> None:
        """Count the buffer: what gradients lie in, or will, as theirs; what else is in it as the bucket's.

        Args:
            on_the_way: backward has computed gradients, which are not averaged yet.
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
        """Forget this backward."""
        self._ready.clear()
        self._passed.clear()
        self._before.clear()
        self._views, self._flags = [], None
        self.launched = False
        self.stale = False

    def reduce(self) -> None:
        """Wait for what all ranks have sent; see `Buffer` for this and the next two."""
        self._buffer.reduce()

    def collect(self) -> None:
        self._buffer.collect()

    def settle(self) -> None:
        self._buffer.settle()

    def _opened(self, users: int) -> tuple[torch.Tensor, bool]:
        """What to fill, and whether it is the buffer's own memory."""
        flat, same = self._buffer.open(users)
        if not (same and self._told):
            self._memory.add(flat)
            self._told = True
        return flat, same

    def _lies_inside(self, place: int, gradient: torch.Tensor | None) -> bool:
        """Whether this gradient is the view of the buffer that it was given."""
        if gradient is None:
            return False
        there = self._buffer.address + self._begins[place] * self.leaves[place].dtype.itemsize
        return gradient.data_ptr() == there and self._lies_alike(place, gradient)

    def _lies_alike(self, place: int, gradient: torch.Tensor) -> bool:
        """Whether this gradient's elements lie as they would in the buffer."""
        leaf = self.leaves[place]
        return gradient.stride() == leaf.stride and gradient.dtype is leaf.dtype

    def _part_of(self, place: int) -> tuple[int, int] | None:
        """Which elements of this gradient the rank sums itself; None where there are few."""
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
        """A tensor for each gradient, and the flags; no views to autograd, scripts detach gradients."""
        *pieces, flags = flat.split([*self._sizes, len(self._sizes)])
        views = [
            piece.as_strided(leaf.shape, leaf.stride).detach()
            for piece, leaf in zip(pieces, self.leaves, strict=True)
        ]
        return views, flags


def average(buckets: Sequence[Bucket]) -> None:
    """Wait for what has been launched on all ranks; then every bucket holds the mean."""
    for bucket in buckets:
        bucket.reduce()
    for bucket in buckets:
        bucket.collect()
    for bucket in buckets:
        bucket.settle()


def assign_buckets(leaves: Sequence[Leaf], first_bytes: int, bucket_bytes: int) -> list[list[Leaf]]:
    """Cut `leaves` into buckets, in order; one dtype and device in each.

    The first is small, so that communication starts early in backward (as in PyTorch DDP, Li et al. 2020).
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

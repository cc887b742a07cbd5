"""Gradients of which each rank holds the part that it updates, until somebody asks for the whole."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from ronde.comm.process_group import Comm
from ronde.sync.home import Home
from ronde.sync.leaf import Leaf
from ronde.trace.resident import Census

__all__ = ["GradientParts", "Held", "Ranges", "Wait"]


class Wait(Protocol):
    """Something under way."""

    def wait(self) -> None:
        """Return when it is over."""
        ...


Ranges = tuple["tuple[int, int] | None", ...]
"""For each rank its elements of a tensor, in the order in which they lie in memory; None without any."""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A gradient in parts."""

    number: int
    leaf: Leaf
    ranges: Ranges
    part: torch.Tensor


class GradientParts:
    """By leaf, the mean over ranks of this rank's elements of its gradient.

    Ranks hold parts of the same leaves, so reading one whole is a collective that all come to.

    Args:
        divide: who has which elements of leaves that come together; None for a leaf that is not divided.
        home: where parts live.
    """

    def __init__(
        self, comm: Comm, divide: Callable[[Sequence[torch.Tensor]], list[Ranges | None]], home: Home
    ) -> None:
        self._comm = comm
        self._held: dict[int, Held] = {}
        # Parts that have come: by its number ranks know the same gradient.
        self._come = 0
        # Tensors whose end is waited for, by id.
        self._watched: set[int] = set()
        self.divide = divide
        self._home = home
        self._aside = False

    def __bool__(self) -> bool:
        return bool(self._held) and not self._aside

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, it looks as if there were none."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return self._of(tensor) is not None

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """This rank's elements, flat and perhaps none; None where the gradient is whole, or not there."""
        held = self._of(tensor)
        return None if held is None else held.part

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """This rank's elements of something of the tensor's shape; all of it where the gradient is whole."""
        held = self._of(tensor)
        if held is None:
            return whole
        laid = whole.new_empty_strided(held.leaf.shape, held.leaf.stride).copy_(whole)
        return laid.as_strided((laid.numel(),), (1,))[slice(*(held.ranges[self.owner] or (0, 0)))]

    def kinds(self, tensors: Iterable[torch.Tensor]) -> set[tuple[torch.dtype, torch.device]]:
        """Of the gradients in parts of these tensors, as a script sees them: on the device."""
        found = [self._of(tensor) for tensor in tensors]
        return {(held.part.dtype, held.leaf.device) for held in found if held is not None}

    @property
    def owner(self) -> int:
        """This rank's place in `Ranges`."""
        return self._comm.rank

    #: Whether this rank has none of the parts: somebody else holds them all.
    away = False

    def reduce(
        self, ranges: Sequence[Ranges], out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]
    ) -> Wait:
        """Begin to sum over ranks what each owner has of gradients that come together.

        Args:
            ranges: of each of these gradients.
            out: flat, this rank's share of the sum, which is there when the result has been waited for.
            pieces: for each owner, of this rank's gradients the elements that are the owner's.
        """
        return self._comm.reduce_scatter_async(out, pieces)

    @property
    def leave_device(self) -> bool:
        """Whether parts that are sent home make room on the device."""
        return self._home.on_host

    def send_home(self, elements: torch.Tensor) -> torch.Tensor:
        """This rank's elements of a mean, on their way to where parts of it may stay."""
        return self._home.send_down(elements)

    def wait_for_sent(self) -> None:
        """What has been sent home is there."""
        self._home.down([], [])

    def tell(self, census: Census) -> None:
        """Count this rank's parts."""
        for held in self._held.values():
            census.count("gradients", held.part)

    @torch.no_grad()
    def add(self, leaf: Leaf, ranges: Ranges, part: torch.Tensor) -> None:
        """Accumulate a part of the mean of one backward, which has been sent home."""
        self._come += 1  # where the leaf is gone too: another rank may have it yet
        tensor = leaf.tensor
        if tensor is None:
            return
        held = self._of(tensor)
        if held is not None:
            held.part.add_(part)
            return
        key = id(tensor)
        if key not in self._watched:  # once, not in each step: it stays as long as the tensor does
            self._watched.add(key)
            weakref.finalize(tensor, self._gone, key).atexit = False
        self._held[key] = Held(self._come, leaf, ranges, part)

    def drop(self, tensor: torch.Tensor) -> None:
        """The gradient is no more."""
        if self._held:
            self._held.pop(id(tensor), None)

    @torch.no_grad()
    def zero(self, tensors: Iterable[torch.Tensor]) -> None:
        """Set what there is of these gradients to zero."""
        for part in self.parts(tensors):
            part.zero_()

    @torch.no_grad()
    def scale(self, factor: float | torch.Tensor) -> None:
        """Multiply all parts in place."""
        for held in self._held.values():
            held.part.mul_(factor)

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gather a gradient: from now on it is an ordinary one, on every rank; None where there is none."""
        held = self._of(tensor)
        if held is None:
            return None
        leaf = held.leaf
        with torch.inference_mode(False):  # later backwards add to it
            gradient = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
        flat = gradient.as_strided((gradient.numel(),), (1,))
        self._complete(flat, held.ranges, held.part)
        self.drop(tensor)
        leaf.gradient = gradient
        return gradient

    def _complete(self, flat: torch.Tensor, ranges: Ranges, part: torch.Tensor) -> None:
        """Write all elements of a gradient, of which this rank has a part."""
        own = ranges[self._comm.rank]
        if own is not None:
            self._home.up([flat[slice(*own)]], [part])
        self._comm.share([[flat[slice(*each)]] if each is not None else [] for each in ranges])

    def restore(self) -> None:
        """Make all gradients whole. All ranks come here."""
        found = [(held.number, held.leaf.tensor) for held in list(self._held.values())]
        here = {number: tensor for number, tensor in found if tensor is not None}
        # One that is gone on one rank only waits for its collection on the others.
        for number in sorted(set.intersection(*self._comm.all_gather_object(set(here)))):
            self.whole(here[number])

    def agree(self, tensor: torch.Tensor, ranges: Ranges) -> None:
        """Make a gradient whole that lies in other parts than these. All ranks come here."""
        held = self._of(tensor)
        if held is not None and held.ranges is not ranges and held.ranges != ranges:
            self.whole(tensor)

    def parts(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's parts of those among `tensors` whose gradient is in parts."""
        found = [self.part(tensor) for tensor in tensors]
        return [part for part in found if part is not None]

    def counted(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """As `parts`, less those of which an earlier rank has a copy: ranks together have each once."""
        held = [each for tensor in tensors if (each := self._of(tensor)) is not None]
        return [each.part for each in held if each.ranges.index(each.ranges[self.owner]) == self.owner]

    def _gone(self, key: int) -> None:
        self._watched.discard(key)
        self._held.pop(key, None)

    def _of(self, tensor: torch.Tensor) -> Held | None:
        held = self._held.get(id(tensor)) if self._held else None
        return held if held is not None and held.leaf.ref() is tensor else None

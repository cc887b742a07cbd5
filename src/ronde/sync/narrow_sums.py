"""Sums over all rows that float16 does not hold, where each rank's part of them is one that it does.

Of a parameter that autocast gives to a model in float16, one device sums the gradient in float16: beyond the
largest number it is infinite, and a `GradScaler` skips the step. Ranks sum their rows so, and these sums in
float32. What one device would have lost is made infinite here, once gradients are whole, so that the same
steps are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.sync.gradient_parts import GradientParts
from ronde.sync.leaf import Leaf

__all__ = ["NarrowSums"]

# Half-way from the largest float16 to what would come next: from here on numbers are rounded to infinity.
_TOO_LARGE = 65520.0


class NarrowSums:
    """Watches one backward; made before it begins.

    Args:
        leaves: whose gradients it may add to.
        parts: where ranks keep parts of gradients; None where each has all of them.
        casts: of leaves that this backward reached, by id: whether all of the gradient came in float16, in
            one sum. Asked when some sum was too large.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        comm: Comm,
        parts: GradientParts | None,
        casts: Callable[[], Mapping[int, bool]],
    ) -> None:
        self._comm = comm
        self._parts = parts
        self._casts = casts
        # Only what this backward adds was summed in float16, and not what was there.
        self._before = {id(leaf): gradient.clone() for leaf, gradient in self._gradients(leaves)}

    @torch.no_grad()
    def lose(self, leaves: Sequence[Leaf]) -> None:
        """Make infinite what one device would not have had. All ranks come here, with averages times W."""
        there = dict(self._gradients(leaves))
        suspects = self._too_large(there)
        if self._parts is not None:
            # Each rank looks at a part of its own.
            votes = self._comm.votes([leaf in suspects for leaf in leaves])
            suspects = [leaf for leaf, count in zip(leaves, votes, strict=True) if count]
        if not suspects:
            return
        casts = self._casts()
        reached = [casts.get(id(leaf.tensor)) for leaf in suspects]
        votes = self._comm.votes([cast is not None for cast in reached] + [cast is False for cast in reached])
        for leaf, some, otherwise in zip(
            suspects, votes[: len(suspects)], votes[len(suspects) :], strict=True
        ):
            gradient = there.get(leaf)
            if some and not otherwise and gradient is not None:
                added = self._added(leaf, gradient)
                lost = added.abs() >= _TOO_LARGE
                gradient.copy_(torch.where(lost, added.sign() * math.inf, gradient))

    def _too_large(self, there: Mapping[Leaf, torch.Tensor]) -> list[Leaf]:
        """Leaves to which a number was added that float16 would not hold, if it is one."""
        asked = [leaf for leaf, gradient in there.items() if gradient.numel()]
        largest = [self._added(leaf, there[leaf]).abs().amax() for leaf in asked]
        if not largest:
            return []
        devices = {each.device for each in largest}
        where = largest[0].device if len(devices) == 1 else torch.device("cpu")
        found = torch.stack([each.to(where) for each in largest]).ge(_TOO_LARGE).tolist()
        return [leaf for leaf, large in zip(asked, found, strict=True) if large]

    def _added(self, leaf: Leaf, gradient: torch.Tensor) -> torch.Tensor:
        before = self._before.get(id(leaf))
        # A gradient that the script took away meanwhile, or that came to lie in parts, began anew.
        return gradient if before is None or before.shape != gradient.shape else gradient - before

    def _gradients(self, leaves: Sequence[Leaf]) -> Iterator[tuple[Leaf, torch.Tensor]]:
        """What there is of each float32 gradient on this rank: all of it, or its part."""
        for leaf in leaves:
            tensor = leaf.tensor
            if tensor is None or leaf.dtype is not torch.float32:
                continue
            part = None if self._parts is None else self._parts.part(tensor)
            gradient = leaf.gradient if part is None else part
            if gradient is not None:
                yield leaf, gradient.detach()

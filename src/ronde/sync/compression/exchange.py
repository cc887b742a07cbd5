"""How the gradients of one bucket are averaged over ranks: what all ways have in common."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.patching.torch_internals import foreach_add_, foreach_copy_
from ronde.sync.compression.held import Held
from ronde.sync.leaf import Leaf

__all__ = ["Exchange"]


class Exchange:
    """Sends what this rank has of some gradients, and gives what they are on all ranks then.

    `take`, `start`; then `reduce`, for several buckets each before the next; then `collect`.

    Args:
        leaves: of one floating-point dtype and device.
        held: keeps what encoding loses; None where that is not added to the next message.

    Attributes:
        values: flat [n], what `start` will send; afterwards what encoding lost, where that is kept.
        sent_bytes: what this rank has sent to others, all in all.
    """

    def __init__(self, comm: Comm, leaves: Sequence[Leaf], held: Held | None) -> None:
        self.comm = comm
        self.leaves = list(leaves)
        self.sizes = [leaf.shape.numel() for leaf in leaves]
        self.feedback = held is not None
        self.sent_bytes = 0
        if held is not None:
            self.values = held.flat("residual", leaves)
        else:
            self.values = torch.zeros(sum(self.sizes), dtype=leaves[0].dtype, device=leaves[0].device)
        self.views = self.shaped(self.values)
        self._aside: list[tuple[torch.Tensor, torch.Tensor]] = []

    def shaped(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A view of each leaf's elements in a flat tensor, as they lie in memory."""
        pieces = flat.split(self.sizes)
        return [
            piece.as_strided(leaf.shape, leaf.stride) for piece, leaf in zip(pieces, self.leaves, strict=True)
        ]

    def take(self, gradients: Sequence[torch.Tensor | None], fresh: bool) -> None:
        """Fill `values` with gradients of this backward; None counts as nought.

        Args:
            fresh: an optimizer has stepped since the last time.
        """
        there = [place for place, gradient in enumerate(gradients) if gradient is not None]
        views = [self.views[place] for place in there]
        given = [gradient for gradient in gradients if gradient is not None]
        missing = [self.views[place] for place in range(len(gradients)) if gradients[place] is None]
        if self.feedback:
            # What is held back of a gradient that nobody computes now must not get lost: it waits.
            self._aside = [(view, view.clone()) for view in missing]
            if given:
                foreach_add_(views, given)
        elif given:
            foreach_copy_(views, given)
        for view in missing:
            view.zero_()

    def start(self, flags: torch.Tensor) -> None:
        """Send `values`, and for each leaf whether this rank computed it: uint8 [leaves]."""
        raise NotImplementedError

    def reduce(self) -> None:
        """Wait for what others have sent, and send what follows from it."""

    def collect(self, out: torch.Tensor) -> list[int]:
        """Write what the gradients are on all ranks to `out` [n].

        Returns:
            for each leaf, how many ranks computed it.
        """
        raise NotImplementedError

    def restore(self) -> None:
        """Put back what waits for its gradient."""
        for view, residual in self._aside:
            view.copy_(residual)
        self._aside = []

    def count_all_reduce(self, nbytes: int) -> None:
        """Count what a ring's sum of so many bytes takes a rank to send."""
        ranks = self.comm.world_size
        self.sent_bytes += 2 * (ranks - 1) * nbytes // ranks

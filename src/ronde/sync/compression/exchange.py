"""Base class of compressed reductions of one bucket."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.patching.torch_internals import foreach_add_, foreach_copy_
from ronde.sync.compression.residuals import ResidualStore
from ronde.sync.leaf import Leaf

__all__ = ["GradientExchange"]


class GradientExchange:
    """Reduces the gradients of some leaves in an encoded form.

    Call `take` and `start`, then `reduce`, then `collect`; with several buckets, each method for all of them
    before the next method.

    Args:
        leaves: leaves of one floating-point dtype and device.
        held: store of residuals; None without error feedback.

    Attributes:
        values: flat [n], the values that `start` will send; afterwards the residuals, with error feedback.
        sent_bytes: total of bytes that this rank has sent to others.
    """

    def __init__(self, comm: Comm, leaves: Sequence[Leaf], held: ResidualStore | None) -> None:
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
        """Return a view of each leaf's elements in a flat tensor, with its strides."""
        pieces = flat.split(self.sizes)
        return [
            piece.as_strided(leaf.shape, leaf.stride) for piece, leaf in zip(pieces, self.leaves, strict=True)
        ]

    def take(self, gradients: Sequence[torch.Tensor | None], fresh: bool) -> None:
        """Fill `values` with gradients of this backward; None counts as zero.

        Args:
            fresh: whether an optimizer has stepped since the last call.
        """
        there = [place for place, gradient in enumerate(gradients) if gradient is not None]
        views = [self.views[place] for place in there]
        given = [gradient for gradient in gradients if gradient is not None]
        missing = [self.views[place] for place in range(len(gradients)) if gradients[place] is None]
        if self.feedback:
            # The residual of a gradient that no rank computes now must not get lost: it is kept aside.
            self._aside = [(view, view.clone()) for view in missing]
            if given:
                foreach_add_(views, given)
        elif given:
            foreach_copy_(views, given)
        for view in missing:
            view.zero_()

    def start(self, flags: torch.Tensor) -> None:
        """Send `values`, and whether this rank computed each leaf: uint8 [leaves]."""
        raise NotImplementedError

    def reduce(self) -> None:
        """Wait for the other ranks' messages, and send the second round."""

    def collect(self, out: torch.Tensor) -> list[int]:
        """Write the reduced gradients to `out` [n].

        Returns:
            The number of ranks that computed each leaf.
        """
        raise NotImplementedError

    def restore(self) -> None:
        """Put back the residuals that were kept aside."""
        for view, residual in self._aside:
            view.copy_(residual)
        self._aside = []

    def count_all_reduce(self, nbytes: int) -> None:
        """Count the bytes that a ring all-reduce of this size sends."""
        ranks = self.comm.world_size
        self.sent_bytes += 2 * (ranks - 1) * nbytes // ranks

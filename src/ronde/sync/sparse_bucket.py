"""Bucket of a sparsely looked-up weight: only looked-up rows are sent."""

from __future__ import annotations

import torch

from ronde.comm.process_group import Comm
from ronde.sync.bucket import Bucket
from ronde.sync.bucket_memory import GradientMemory
from ronde.sync.gradient_shards import Spans
from ronde.sync.leaf import Leaf, give_gradient
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.sparse_rows import mean_of_rows, sum_of_rows
from ronde.trace.resident import Census

__all__ = ["SparseBucket"]


class SparseBucket(Bucket):
    """Averages one gradient, sparse or dense. It is dense where the weight is used in another way too.

    Args:
        leaf: the weight.
        comm: the reducer's own process group.
        rows: store of averages for weights with spread rows; None where no plan spreads any.
    """

    def __init__(
        self, leaf: Leaf, comm: Comm, memory: GradientMemory, rows: ReducedGradients | None = None
    ) -> None:
        super().__init__([leaf], None, memory)
        self._comm = comm
        self._rows = rows
        self._mean: torch.Tensor | None = None
        # Rows of the mean on each rank, where they are spread.
        self._spans: Spans | None = None
        self._accumulates = False

    def begin(self, *, graph: bool = False) -> None:
        """Prepare for a backward.

        A gradient that is whole stays so: every rank adds the whole of this backward's.
        """
        self._accumulates = graph or self.leaves[0].gradient is not None

    @property
    def early(self) -> bool:
        """False: the number of rows is unknown until backward ends."""
        return False

    def mark(self, tensor: torch.Tensor) -> None:
        """Record that a gradient has been accumulated."""
        self.stale = self.stale or self.launched
        self._ready.add(0)

    def launch(self) -> None:
        """Mark the bucket as sent; `reduce` sends and waits."""
        self.launched = True

    def advance(self) -> bool:
        return True

    @torch.no_grad()
    def reduce(self) -> None:
        """Compute the mean over ranks; None where no rank computed a gradient."""
        comm, leaf = self._comm, self.leaves[0]
        gradient = leaf.gradient
        dense = gradient is not None and gradient.layout == torch.strided
        own = None if gradient is None or dense else gradient.coalesce()
        computed, denses = comm.votes([self.touched, dense])
        self._mean, self._spans = None, None
        if not computed:
            return
        if denses:
            whole = (
                torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device)
                if gradient is None
                else gradient.to_dense()
            )
            self._mean = comm.all_reduce(whole.clone()) / comm.world_size
            return
        if own is None:
            own = torch.zeros(
                leaf.shape, dtype=leaf.dtype, device=leaf.device, layout=torch.sparse_coo
            ).coalesce()
        self._spans = self._owners()
        if self._rows is not None and self._spans is not None:
            self._mean = mean_of_rows(comm, own, self._spans)
            return
        self._mean = sum_of_rows(comm, own) / comm.world_size

    def _owners(self) -> Spans | None:
        """Return the spans of each rank, or None.

        None if rows are not spread, or this gradient is whole.
        """
        tensor = self.leaves[0].tensor
        if self._rows is None or self._accumulates or tensor is None:
            return None
        return self._rows.divide([tensor])[0]

    def collect(self) -> None:
        return

    def settle(self) -> None:
        return

    def deliver(self) -> list[torch.Tensor]:
        """Put the mean where the gradient was."""
        tensor = self.leaves[0].tensor
        if tensor is not None and self._mean is not None:
            self._give(tensor, self._mean)
        self._mean = None
        self.reset()
        return []

    def _give(self, tensor: torch.Tensor, mean: torch.Tensor) -> None:
        if self._rows is None:
            give_gradient(tensor, mean)
        elif self._spans is not None:
            give_gradient(tensor, None)
            self._rows.add(self.leaves[0], self._spans, mean)
        else:
            before = self._rows.whole(tensor)  # accumulated in backwards with a sparse gradient
            give_gradient(tensor, mean if before is None else mean + before)

    def take_over(self, known: set[int]) -> None:
        """Ignore the call: no gradient lies in a buffer."""

    def tell(self, census: Census, *, on_the_way: bool) -> None:
        """Count nothing: this bucket has no buffer."""

"""The gradient of a weight that is looked up sparsely: only the rows that some rank looked up travel."""

from __future__ import annotations

import torch

from ronde.comm.process_group import Comm
from ronde.plan.resident import Census
from ronde.sync.bucket import Bucket
from ronde.sync.bucket_memory import GradientMemory
from ronde.sync.leaf import Leaf, give_gradient

__all__ = ["SparseBucket"]


class SparseBucket(Bucket):
    """Averages one gradient, sparse, or dense where the weight is used in another way too.

    Args:
        leaf: the weight.
        comm: the reducer's own.
    """

    def __init__(self, leaf: Leaf, comm: Comm, memory: GradientMemory) -> None:
        super().__init__([leaf], None, memory)
        self._comm = comm
        self._mean: torch.Tensor | None = None

    @property
    def early(self) -> bool:
        """Never: how many rows travel is known at the end of backward only."""
        return False

    def mark(self, tensor: torch.Tensor) -> None:
        """A gradient has been accumulated."""
        self.stale = self.stale or self.launched
        self._ready.add(0)

    def launch(self) -> None:
        """All that is sent waits for its answer; see `reduce`."""
        self.launched = True

    def advance(self) -> bool:
        return True

    @torch.no_grad()
    def reduce(self) -> None:
        """The mean over ranks; None where none of them computed a gradient."""
        comm, leaf = self._comm, self.leaves[0]
        gradient = leaf.gradient
        dense = gradient is not None and gradient.layout == torch.strided
        own = None if gradient is None or dense else gradient.coalesce()
        told = [self.touched, dense, 0 if own is None else own._nnz()]
        computed, denses, rows = comm.all_gather(torch.tensor(told)).t().tolist()
        self._mean = None
        if not any(computed):
            return
        if any(denses):
            whole = torch.zeros(leaf.shape, dtype=leaf.dtype) if gradient is None else gradient.to_dense()
            self._mean = comm.all_reduce(whole.clone()) / comm.world_size
            return
        if own is None:
            own = torch.zeros(leaf.shape, dtype=leaf.dtype, layout=torch.sparse_coo).coalesce()
        indices = torch.cat(comm.all_gather_uneven(own.indices()[:1].t().contiguous(), rows)).t()
        values = torch.cat(comm.all_gather_uneven(own.values().view(-1, *leaf.shape[1:]), rows))
        together = torch.sparse_coo_tensor(
            indices, values / comm.world_size, leaf.shape, check_invariants=False
        )
        self._mean = together.coalesce()

    def collect(self) -> None:
        return

    def settle(self) -> None:
        return

    def deliver(self) -> list[torch.Tensor]:
        """Put the mean where the gradient was."""
        tensor = self.leaves[0].tensor
        if tensor is not None and self._mean is not None:
            give_gradient(tensor, self._mean)
        self._mean = None
        self.reset()
        return []

    def take_over(self, known: set[int]) -> None:
        """Nothing lies in a buffer."""

    def tell(self, census: Census, *, on_the_way: bool) -> None:
        """There is no buffer to count."""

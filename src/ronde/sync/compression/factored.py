"""PowerSGD: gradients of matrices sent as two thin factors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.compressors.low_rank import as_matrix, first_factor, multiply, orthonormal, pays
from ronde.comm.pending import Pending
from ronde.comm.process_group import Comm
from ronde.sync.compression.exchange import GradientExchange
from ronde.sync.compression.residuals import ResidualStore
from ronde.sync.leaf import Leaf

__all__ = ["Factored"]


class Factored(GradientExchange):
    """Approximate gradients of matrices by low-rank factors.

    On rank r, with Q from the step before (drawn equally at first) and the residual e_r:

        M_r = g_r + e_r;  P = orthonormal(mean over ranks of M_r Q);  Q = mean over ranks of M_r^T P
        g = P Q^T;  e_r = M_r - g

    Both means are sums of small matrices, so an all-reduce computes them. A tensor of more axes is a matrix
    by its first one. Tensors of one axis, and matrices that factors would not halve, are sent whole. Without
    error feedback e_r = 0. Source: Vogels et al., "PowerSGD", NeurIPS 2019; torch's `powerSGD_hook`
    orthonormalizes column by column what QR does here.

    Factors lie in memory as P^T and Q^T: products of a wide matrix with one are several times as fast then.

    Args:
        factors: store of Q.
        rank: columns of the factors.
    """

    def __init__(
        self,
        comm: Comm,
        leaves: Sequence[Leaf],
        held: ResidualStore | None,
        factors: ResidualStore,
        rank: int,
    ) -> None:
        super().__init__(comm, leaves, held)
        self._parts = self.values.split(self.sizes)
        self._cut = [place for place, leaf in enumerate(leaves) if pays(leaf.shape, rank)]
        self._whole = [place for place in range(len(leaves)) if place not in set(self._cut)]
        self._right: dict[int, torch.Tensor] = {}
        for place in self._cut:
            leaf = leaves[place]
            first = first_factor(leaf.shape, rank, leaf.dtype, factors.number(leaf)).to(leaf.device)
            factors.put("factor", leaf, first)
            self._right[place] = first
        self._pending: Pending | None = None

    def start(self, flags: torch.Tensor) -> None:
        left = [self._right[place] @ self._matrix(place).T for place in self._cut]
        whole = [self._parts[place] for place in self._whole]
        self._shapes = [each.shape for each in left]
        self._sent = torch.cat([*(each.view(-1) for each in left), *whole, flags.to(self.values.dtype)])
        self._pending = self.comm.all_reduce_async(self._sent)
        self.count_all_reduce(self._sent.nbytes)

    def reduce(self) -> None:
        assert self._pending is not None
        self._pending.wait()
        numel = [shape.numel() for shape in self._shapes]
        sizes = [*numel, *(self.sizes[place] for place in self._whole), len(self.sizes)]
        *parts, counts = self._sent.split(sizes)
        self._counts = [round(count) for count in counts.tolist()]
        self._means = [each / self.comm.world_size for each in parts[len(self._cut) :]]
        del self._sent
        self._left = [
            orthonormal(part.view(shape) / self.comm.world_size)
            for part, shape in zip(parts[: len(self._cut)], self._shapes, strict=True)
        ]
        right = [
            (left @ self._matrix(place)).view(-1) for place, left in zip(self._cut, self._left, strict=True)
        ]
        self._pending = None
        if right:
            self._second = torch.cat(right)
            self._pending = self.comm.all_reduce_async(self._second)
            self.count_all_reduce(self._second.nbytes)

    def collect(self, out: torch.Tensor) -> list[int]:
        parts = out.split(self.sizes)
        for place, mean in zip(self._whole, self._means, strict=True):
            parts[place].copy_(mean)
            self._parts[place].zero_()
        if self._pending is not None:
            self._pending.wait()
            sizes = [self._right[place].numel() for place in self._cut]
            second = self._second.div_(self.comm.world_size).split(sizes)
            for place, left, right in zip(self._cut, self._left, second, strict=True):
                if not self._counts[place]:  # without a gradient the next factor would be zero
                    continue
                self._right[place].copy_(right.view_as(self._right[place]))
                matrix = as_matrix(parts[place], self.leaves[place].shape)
                multiply(left, self._right[place], matrix)
                if self.feedback:
                    self._parts[place].sub_(parts[place])
            del self._second
        del self._left, self._means
        return self._counts

    def _matrix(self, place: int) -> torch.Tensor:
        return as_matrix(self._parts[place], self.leaves[place].shape)

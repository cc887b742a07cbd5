"""Adasum over ranks: log2(W) rounds of pairwise sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.compressors.adasum import adasum
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.sync.compression.exchange import GradientExchange
from ronde.sync.leaf import Leaf

__all__ = ["AdaptiveSum"]


class AdaptiveSum(GradientExchange):
    """Reduce gradients by Adasum, tensor by tensor, over pairs of pairs.

    Ranks r and r + 1 come first, then r and r + 2, and so on. Four ranks have A(A(g_0, g_1), A(g_2, g_3)),
    with

        A(a, b) = a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2)

    Source: Maleki et al., MLSys 2021; Horovod's `op=Adasum`.

    Raises:
        UsageError: the number of ranks is not a power of two.
    """

    def __init__(self, comm: Comm, leaves: Sequence[Leaf]) -> None:
        super().__init__(comm, leaves, None)
        if comm.world_size & (comm.world_size - 1):
            raise UsageError(
                f"reduction=adasum adds gradients in pairs of pairs, and {comm.world_size} ranks "
                "are not a power of two; use 2, 4, 8, ... ranks, or reduction=mean [R282]"
            )

    def start(self, flags: torch.Tensor) -> None:
        self._counts = flags.to(torch.int32)
        self._pending = self.comm.all_reduce_async(self._counts)

    def collect(self, out: torch.Tensor) -> list[int]:
        self._pending.wait()
        rank, distance = self.comm.rank, 1
        own = self.values.clone()
        while distance < self.comm.world_size:
            other = self._from(rank ^ distance, own)
            first, second = (own, other) if rank < rank ^ distance else (other, own)
            own = adasum(first, second, self.sizes)
            distance *= 2
        out.copy_(own)
        return self._counts.tolist()

    def _from(self, peer: int, own: torch.Tensor) -> torch.Tensor:
        self.sent_bytes += own.nbytes
        received, pending = self.comm.swap_async(own, {peer})
        pending.wait()
        return received[peer]

"""Uncompressed reduction: mean, sum, and a mean with its division in two parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.pending import Pending
from ronde.comm.process_group import Comm
from ronde.sync.compression.exchange import GradientExchange
from ronde.sync.leaf import Leaf

__all__ = ["Summed"]


class Summed(GradientExchange):
    """Sum gradients, as g = after * sum over ranks of (g_r / before).

    The mean over W ranks has before = f and after = f / W, with f = 1, or Horovod's
    `gradient_predivide_factor`: with a suitable f neither terms nor sums leave the range of a dtype. The sum
    (Horovod's `op=Sum`) has 1 and 1.

    Args:
        before: divisor of each rank's gradient.
        after: factor of the sum.
    """

    def __init__(self, comm: Comm, leaves: Sequence[Leaf], *, before: float, after: float) -> None:
        super().__init__(comm, leaves, None)
        self._before, self._after = before, after
        self._pending: Pending | None = None

    def start(self, flags: torch.Tensor) -> None:
        sent = self.values if self._before == 1 else self.values / self._before
        self._sent = torch.cat([sent, flags.to(sent.dtype)])
        self._pending = self.comm.all_reduce_async(self._sent)
        self.count_all_reduce(self._sent.nbytes)

    def reduce(self) -> None:
        assert self._pending is not None
        self._pending.wait()

    def collect(self, out: torch.Tensor) -> list[int]:
        torch.mul(self._sent[: len(out)], self._after, out=out)
        counts = self._sent[len(out) :].tolist()
        del self._sent
        return [round(count) for count in counts]

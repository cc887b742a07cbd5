"""QAdam: ranks average Adam's momentum, which tolerates encoding better than gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ronde.comm.compressors.codec import Codec
from ronde.comm.process_group import Comm
from ronde.sync.compression.chunked import Chunked
from ronde.sync.leaf import Leaf

__all__ = ["AveragedMomentum", "FirstMoment"]

FirstMoment = tuple[float, "torch.Tensor | None"]
"""beta_1 and Adam's first moment; None for zero."""


class AveragedMomentum(Chunked):
    """Average Adam's momentum in encoded form, after a warm-up.

    With Q the exchange by chunks of rank r's momentum and its mean (see `Chunked`):

        m_r = beta_1 m + (1 - beta_1) g_r;  m = Q(m_r);  w = w - lr m^ / (sqrt(v^) + eps)

    m is equal on all ranks, v stays as it was at the end of the warm-up, and ^ are Adam's bias corrections,
    which go on. Source: Tang et al., "1-bit Adam", ICML 2021, and QAdam of Bagua. The gradient becomes (m -
    beta_1 m_before) / (1 - beta_1): from it Adam computes this m, and a script may clip it.

    Several backwards between two steps count as one: beta_1 m is sent with the first.

    Args:
        moments: function that returns the first moment of each leaf, called before each message.
    """

    def __init__(
        self,
        comm: Comm,
        leaves: Sequence[Leaf],
        codec: Codec,
        moments: Callable[[], Sequence[FirstMoment]],
    ) -> None:
        super().__init__(comm, leaves, None, codec)
        self._moments = moments

    def take(self, gradients: Sequence[torch.Tensor | None], fresh: bool) -> None:
        super().take(gradients, fresh)
        self._sent = [(beta, moment if fresh else None) for beta, moment in self._moments()]
        for view, (beta, moment) in zip(self.views, self._sent, strict=True):
            view.mul_(1 - beta)
            if moment is not None:
                view.add_(moment, alpha=beta)

    def collect(self, out: torch.Tensor) -> list[int]:
        counts = super().collect(out)
        for view, (beta, moment) in zip(self.shaped(out), self._sent, strict=True):
            if moment is not None:
                view.sub_(moment, alpha=beta)
            view.div_(1 - beta)
        return counts

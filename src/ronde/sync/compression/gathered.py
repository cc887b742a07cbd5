"""Compression with messages that cannot be added: all-gather, decode, average."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ronde.comm.compressors.codec import Codec, joined, padded
from ronde.comm.pending import Pending
from ronde.comm.process_group import Comm
from ronde.sync.compression.exchange import GradientExchange
from ronde.sync.compression.residuals import ResidualStore
from ronde.sync.leaf import Leaf

__all__ = ["Gathered"]


class Gathered(GradientExchange):
    """All-gather the messages of all ranks, and average their decoded values.

    With C the encoding and its decoding, residuals e_r, and W ranks:

        x_r = g_r + e_r;  g = 1/W sum over ranks of C(x_r);  e_r = x_r - C(x_r)

    tensor by tensor (Seide et al. 2014; Karimireddy et al. 2019). Without error feedback e_r = 0. See
    `Corrected` for the effect of momentum on e_r.

    Args:
        codecs: function that returns one codec per leaf, called before each message: they may differ from
            step to step.
    """

    def __init__(
        self,
        comm: Comm,
        leaves: Sequence[Leaf],
        held: ResidualStore | None,
        codecs: Callable[[], Sequence[Codec]],
    ) -> None:
        super().__init__(comm, leaves, held)
        self._codecs_now = codecs
        self._codecs: Sequence[Codec] = ()
        self._pending: Pending | None = None

    def start(self, flags: torch.Tensor) -> None:
        self._codecs = self._codecs_now()
        messages = [
            codec.encode(part)
            for codec, part in zip(self._codecs, self.values.split(self.sizes), strict=True)
        ]
        payload = torch.cat([*messages, joined(flags)])
        self._all, self._pending = self.comm.all_gather_async(payload)
        self.sent_bytes += (self.comm.world_size - 1) * payload.numel()
        if self.feedback:
            self.keep(self._codecs, messages)

    def keep(self, codecs: Sequence[Codec], messages: Sequence[torch.Tensor]) -> None:
        """Leave in `values` the residual of these messages."""
        for codec, message, part in zip(codecs, messages, self.values.split(self.sizes), strict=True):
            codec.add(message, part, sign=-1)

    def reduce(self) -> None:
        assert self._pending is not None
        self._pending.wait()

    def collect(self, out: torch.Tensor) -> list[int]:
        out.zero_()
        lengths = [codec.size(size, out.dtype) for codec, size in zip(self._codecs, self.sizes, strict=True)]
        counts = torch.zeros(len(self.sizes), dtype=torch.int64)
        for payload in self._all.unbind(0):
            *messages, flags = payload.split([*lengths, padded(len(self.sizes))])
            for codec, message, part in zip(self._codecs, messages, out.split(self.sizes), strict=True):
                codec.add(message, part)
            counts += flags[: len(self.sizes)].cpu()
        out.div_(self.comm.world_size)
        del self._all
        return counts.tolist()

"""Compression by chunks: each rank sums one chunk, and encodes its mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.compressors.codec import Codec, joined
from ronde.comm.pending import Pending
from ronde.comm.process_group import Comm
from ronde.comm.split import equal_parts
from ronde.sync.compression.exchange import GradientExchange
from ronde.sync.compression.residuals import ResidualStore
from ronde.sync.leaf import Leaf

__all__ = ["Chunked"]


class Chunked(GradientExchange):
    """Average in chunks, encoded in both directions.

    A bucket is cut into W chunks; of chunk c, with C the encoding and its decoding,

        x_r = g_r + e_r;  m = 1/W sum over ranks of C(x_r), on rank c;  g = C(m);  e_r = x_r - C(x_r)

    (ByteGrad of Bagua, with C = min-max uint8). A sum is taken in the gradient's own dtype in the order of
    ranks, so fp16 loses twice by rounding and nothing by adding. Without error feedback e_r = 0.
    """

    def __init__(self, comm: Comm, leaves: Sequence[Leaf], held: ResidualStore | None, codec: Codec) -> None:
        super().__init__(comm, leaves, held)
        self._codec = codec
        self._chunk = -(-self.values.numel() // comm.world_size)
        self._pending: Pending | None = None

    def start(self, flags: torch.Tensor) -> None:
        codec, ranks = self._codec, self.comm.world_size
        chunks = self._chunks(self.values)
        messages = [codec.encode(chunk) for chunk in chunks]
        told = joined(flags)
        pieces = [torch.cat([message, told]) for message in messages]
        sizes = [codec.size(len(chunks[self.comm.rank]), self.values.dtype) + len(told)] * ranks
        self._received, self._pending = self.comm.all_to_all_async(pieces, sizes, len(pieces[0]))
        self.sent_bytes += sum(len(piece) for piece in pieces) - len(pieces[self.comm.rank])
        if self.feedback:
            for chunk, message in zip(chunks, messages, strict=True):
                codec.add(message, chunk, sign=-1)

    def reduce(self) -> None:
        assert self._pending is not None
        self._pending.wait()
        own = self._chunks(self.values)[self.comm.rank]
        mean = torch.zeros(self._chunk, dtype=own.dtype, device=own.device)
        size = self._codec.size(len(own), own.dtype)
        self._counts = torch.zeros(len(self.sizes), dtype=torch.int64)
        for piece in self._received:
            self._codec.add(piece[:size], mean[: len(own)])
            self._counts += piece[size : size + len(self.sizes)].cpu()
        del self._received
        message = self._codec.encode(mean[: len(own)].div_(self.comm.world_size))
        room = message.new_zeros(self._codec.size(self._chunk, own.dtype))  # the last chunks may be shorter
        room[: len(message)] = message
        self._all, self._pending = self.comm.all_gather_async(room)
        self.sent_bytes += (self.comm.world_size - 1) * len(room)

    def collect(self, out: torch.Tensor) -> list[int]:
        assert self._pending is not None
        self._pending.wait()
        for message, chunk in zip(self._all.unbind(0), self._chunks(out), strict=True):
            size = self._codec.size(len(chunk), out.dtype)
            self._codec.add(message[:size], chunk.zero_())
        del self._all
        return self._counts.tolist()

    def _chunks(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Split into a piece per rank; the last ones may be shorter, or empty."""
        return [flat[begin:end] for begin, end in equal_parts(flat.numel(), self.comm.world_size)]

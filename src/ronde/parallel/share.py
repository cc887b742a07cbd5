"""Ranks complete tensors of which each holds a part of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.partition import Part, windows

__all__ = ["Share"]

WINDOW_BYTES = 8 << 20
"""Of one rank's part of a message; a buffer for the parts of all ranks is all the memory that it takes."""


class Share:
    """Completes flat tensors of one dtype and device, part by part; made once for a way of cutting them.

    Args:
        parts: for each rank its parts; the same on all ranks.
        dtype, device: the tensors'.
    """

    def __init__(
        self,
        comm: Comm,
        parts: Sequence[Sequence[Part]],
        dtype: torch.dtype,
        device: torch.device,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._comm = comm
        self._dtype, self._device = dtype, device
        limit = max(1, window_bytes // dtype.itemsize)
        messages = [windows(each, limit) for each in parts]
        rounds = max((len(each) for each in messages), default=0)
        # For each round what every rank sends in it; a rank whose parts are through sends nothing of use.
        self._rounds = [
            [each[number] if number < len(each) else [] for each in messages] for number in range(rounds)
        ]

    @torch.no_grad()
    def complete(self, tensors: Sequence[torch.Tensor]) -> None:
        """Every rank has written its own parts of these flat tensors; on return they are whole on all."""
        mine = self._comm.rank
        for messages in self._rounds:
            length = max(sum(part.size for part in message) for message in messages)
            buffer = torch.empty(length * len(messages), dtype=self._dtype, device=self._device)
            pairs = [
                _pairs(buffer[rank * length :], message, tensors) for rank, message in enumerate(messages)
            ]
            sent, own = pairs.pop(mine)
            if sent:
                torch._foreach_copy_(sent, own)
            self._comm.all_gather_in_place(buffer)
            received = [place for places, _ in pairs for place in places]
            if received:
                torch._foreach_copy_([value for _, values in pairs for value in values], received)


def _pairs(
    buffer: torch.Tensor, message: Sequence[Part], tensors: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Where each part of a message lies: in the buffer, and in its tensor."""
    sizes = [part.size for part in message]
    places = list(buffer[: sum(sizes)].split(sizes))
    return places, [tensors[part.tensor][part.start : part.stop] for part in message]

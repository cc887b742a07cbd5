"""The ring: every rank sends to the next and receives from the one before.

The tensor is cut into as many segments as there are ranks. In W - 1 steps each segment travels once round the
ring while every rank adds its own, and ends up summed on one rank (reduce-scatter); in W - 1 more the sums
travel round (all-gather). A rank sends 2 (W - 1) / W times the tensor, the least that is possible; the price
is 2 (W - 1) messages in sequence. (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", 2009.) The segments that each of 3 ranks sends:

            adding      copying
    step    0    1    2    3
    rank 0  2    1    0    2      segment 0 comes to rank 0 in step 1, with the others' parts:
    rank 1  0    2    1    0      its sum is complete there, and is sent in step 2
    rank 2  1    0    2    1

A segment travels in pieces: a piece goes on as soon as it has been added, while the next one arrives.
Each element is summed in one order and then copied, so all ranks hold the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.split import even_parts
from ronde.comm.transport import Handle, Transport

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

PIECE_BYTES = 1 << 18

Segments = Sequence[Sequence[torch.Tensor]]


def all_reduce(transport: Transport, flat: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> None:
    """Sum `flat` [n] over the ranks in place."""
    steps = transport.world_size - 1
    _go_round(transport, _segments(flat, transport, piece_bytes), transport.rank - 1, steps, steps)


def reduce_scatter(transport: Transport, flat: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> None:
    """Reduce-scatter `flat` [n] in place, by `even_parts`. The rest of `flat` is then undefined."""
    steps = transport.world_size - 1
    _go_round(transport, _segments(flat, transport, piece_bytes), transport.rank - 1, steps, 0)


def all_gather(transport: Transport, flat: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> None:
    """All-gather the parts of `flat` [n] in place, by `bounds`."""
    steps = transport.world_size - 1
    _go_round(transport, _segments(flat, transport, piece_bytes), transport.rank, 0, steps)


def _segments(flat: torch.Tensor, transport: Transport, piece_bytes: int) -> Segments:
    """Return the segments, each cut into pieces, alike on every rank."""
    width = max(1, piece_bytes // flat.element_size())
    parts = [flat[begin:end] for begin, end in even_parts(flat.numel(), transport.world_size)]
    return [part.split(width) if part.numel() else () for part in parts]


def _go_round(transport: Transport, segments: Segments, first: int, adds: int, copies: int) -> None:
    """Send segment `first`, then in each step the segment that has just arrived.

    In the first `adds` steps this rank's own is added to it, in the other `copies` steps it is only copied.
    """
    if transport.world_size == 1:
        return
    scratch = [torch.empty_like(piece) for piece in max(segments, key=_size)] if adds else []
    sent: dict[tuple[int, int], Handle] = {}
    arriving: dict[tuple[int, int], tuple[torch.Tensor, Handle]] = {}
    to, source = (transport.rank + 1) % len(segments), transport.rank - 1

    def expect(step: int, place: int) -> None:
        """Start to receive one piece of a step.

        A sum goes into the tensor itself, once the old content has been sent.
        """
        number = (first - 1 - step) % len(segments)
        if step >= adds + copies or place >= len(segments[number]):
            return
        target = segments[number][place]
        if step < adds:
            target = scratch[place][: target.numel()]
        elif (number, place) in sent:
            sent.pop((number, place)).wait()
        arriving[step, place] = target, transport.receive(target, source % len(segments))

    def send(number: int, place: int) -> None:
        sent[number, place] = transport.send(segments[number][place], to)

    most = max(len(pieces) for pieces in segments)
    for place in range(most):
        expect(0, place)
    for place in range(len(segments[first])):
        send(first % len(segments), place)
    for step in range(adds + copies):
        number = (first - 1 - step) % len(segments)
        for place in range(most):
            if place < len(segments[number]):
                received, handle = arriving.pop((step, place))
                handle.wait()
                if step < adds:
                    segments[number][place].add_(received)
            # Before `send`, because the ready signal of a receive queues after bytes that go the same way.
            expect(step + 1, place)
            if place < len(segments[number]) and step + 1 < adds + copies:
                send(number, place)
    for handle in sent.values():
        handle.wait()


def _size(pieces: Sequence[torch.Tensor]) -> int:
    return sum(piece.numel() for piece in pieces)

"""Decentralized SGD on a ring, with differences encoded in 8 bits."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import torch

from ronde.comm.compressors.min_max import MinMax
from ronde.comm.process_group import Comm
from ronde.sync.averaging.protocol import Averaging, add_parts, flats_of

__all__ = ["LowPrecision"]


class LowPrecision(Averaging):
    """Average with both neighbours on a ring.

    On rank r, with U the script's optimizer, L and R the ranks before and after r on the ring, and Q the
    encoding as min-max uint8 and its decoding, tensor by tensor:

        x_r = U(w_r, g_r);  d_r = Q(x_r + w_L / 3 + w_R / 3 - 5/3 w_r);  w_r = w_r + d_r

    Each rank keeps copies of w_L and w_R, to which it adds the d received from there, so copies are bitwise
    equal. With two ranks, each is the other's L and R. Source: Tang et al., "Communication compression for
    decentralized training", NeurIPS 2018 (DCD-SGD); Bagua's `low_precision_decentralized`.
    """

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self._codec = MinMax()
        self._rings: weakref.WeakKeyDictionary[Any, list[_Ring]] = weakref.WeakKeyDictionary()

    def begin(self, optimizer: Any) -> None:
        super().begin(optimizer)
        self._rings[optimizer] = self._alike(optimizer)

    @torch.no_grad()
    def complete(self, optimizer: Any, step: int) -> None:
        found = flats_of(self.members_of(optimizer))
        rings = self._rings[optimizer]
        if [len(flat) for flat, _ in found] != [len(ring.own) for ring in rings]:
            rings = self._rings[optimizer] = self._anew(optimizer)
            found = flats_of(self.members_of(optimizer))
        for (flat, members), ring in zip(found, rings, strict=True):
            self._exchange(flat, members, ring)
        self.averages += 1
        self.met()

    def _anew(self, optimizer: Any) -> list[_Ring]:
        """Start again with rank 0's parameters, after parameters were added or removed."""
        super().begin(optimizer)
        return self._alike(optimizer)

    def _alike(self, optimizer: Any) -> list[_Ring]:
        """Create the copies of the ring, given that all ranks have the same parameters."""
        return [_Ring(flat, flat.clone(), flat.clone()) for flat, _ in flats_of(self.members_of(optimizer))]

    def _exchange(self, flat: torch.Tensor, members: list[torch.Tensor], ring: _Ring) -> None:
        comm, codec = self.comm, self._codec
        sizes = [each.numel() for each in members]
        difference = flat.add(ring.left, alpha=1 / 3).add_(ring.right, alpha=1 / 3)
        difference.sub_(ring.own, alpha=5 / 3)
        message = torch.cat([codec.encode(part) for part in difference.split(sizes)])
        left, right = (comm.rank - 1) % comm.world_size, (comm.rank + 1) % comm.world_size
        received, pending = comm.swap_async(message, {left, right})
        pending.wait()
        for copy, sent in ((ring.own, message), (ring.left, received[left]), (ring.right, received[right])):
            self._add(copy, sent, sizes)
        add_parts(members, ring.own - flat)

    def _add(self, copy: torch.Tensor, message: torch.Tensor, sizes: list[int]) -> None:
        lengths = [self._codec.size(size, copy.dtype) for size in sizes]
        begins = itertools.accumulate(lengths, initial=0)
        for part, length, begin in zip(copy.split(sizes), lengths, begins, strict=False):
            self._codec.add(message[begin : begin + length], part)

    def state_of(self, optimizer: Any) -> dict[str, Any]:
        return {**super().state_of(optimizer), "rings": [tuple(ring) for ring in self._rings[optimizer]]}

    def go_on(self, optimizer: Any, state: dict[str, Any]) -> None:
        super().go_on(optimizer, state)
        self._rings[optimizer] = [
            _Ring(*(value.to(members[0].device) for value in ring))
            for ring, (_, members) in zip(state["rings"], flats_of(self.members_of(optimizer)), strict=True)
        ]


class _Ring(NamedTuple):
    """Copies of w_r, w_L and w_R."""

    own: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

"""Decentralized SGD: averages over some ranks, overlapped with the next gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from ronde.comm.pending import Pending
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.sync.averaging.protocol import Averaging, add_parts, flats_of

__all__ = ["Decentralized", "peer_of"]

Peers = Literal["all", "shift-one"]


class Decentralized(Averaging):
    """Average with some ranks before each step.

    On rank r, with U the script's optimizer and P(r, t) ranks that include r:

        w_r[t+1] = U(mean over q in P(r, t) of w_q[t], g_r(w_r[t]))

    The gradient is that of the rank's own parameters, so these travel while forward and backward run. P is
    all ranks, or r and one other, `peer_of(r, t, W)`. Source: Lian et al., "Can decentralized algorithms
    outperform centralized algorithms?", NeurIPS 2017; Bagua's `decentralized`. Writes of a script to its
    parameters between steps are kept: the difference to the mean is added.
    """

    def __init__(self, comm: Comm, peers: Peers) -> None:
        super().__init__(comm)
        if peers == "shift-one" and comm.world_size % 2:
            raise UsageError(
                f"peers=shift-one pairs ranks, and {comm.world_size} is odd; use an even number of "
                "ranks, or peers=all [R282]"
            )
        self._peers = peers
        self._under_way: weakref.WeakKeyDictionary[Any, list[_Sent]] = weakref.WeakKeyDictionary()

    def prepare(self, optimizer: Any, step: int) -> None:
        for sent in self._under_way.pop(optimizer, []):
            add_parts(sent.members, sent.difference())
            self.averages += 1

    @torch.no_grad()
    def complete(self, optimizer: Any, step: int) -> None:
        self._under_way[optimizer] = [
            self._send(flat, members, step - 1) for flat, members in flats_of(self.members_of(optimizer))
        ]
        self.met()

    def _send(self, flat: torch.Tensor, members: list[torch.Tensor], step: int) -> _Sent:
        comm = self.comm
        if self._peers == "all":
            total = flat.clone()
            return _Sent(
                members, comm.all_reduce_async(total), lambda: total.div_(comm.world_size).sub_(flat)
            )
        peer = peer_of(comm.rank, step, comm.world_size)
        outs, pending = comm.swap_async(flat, {peer})
        return _Sent(members, pending, lambda: outs[peer].sub_(flat).div_(2))

    def state_of(self, optimizer: Any) -> dict[str, Any]:
        came = [sent.difference() for sent in self._under_way.get(optimizer, [])]
        return {**super().state_of(optimizer), "came": came}

    @torch.no_grad()
    def go_on(self, optimizer: Any, state: dict[str, Any]) -> None:
        super().go_on(optimizer, state)
        flats = flats_of(self.members_of(optimizer))
        self._under_way[optimizer] = [
            _Sent(members, None, partial(came.to, flat.device))
            for came, (flat, members) in zip(state["came"], flats, strict=True)
        ]

    def finish(self) -> None:
        """Receive pending averages, so that no rank waits.

        No step follows that would begin with them.
        """
        for sent in [each for some in self._under_way.values() for each in some]:
            sent.difference()
        self._under_way.clear()


class _Sent:
    """Average that was started, and will be received before the next step."""

    def __init__(
        self, members: list[torch.Tensor], pending: Pending | None, difference: Callable[[], torch.Tensor]
    ) -> None:
        self.members, self._pending, self._difference = members, pending, difference

    @torch.no_grad()
    def difference(self) -> torch.Tensor:
        """Return the mean less the parameters that this rank has sent, flat."""
        if self._pending is not None:
            self._pending.wait()
            came = self._difference()
            self._pending, self._difference = None, lambda: came
        return self._difference()


def peer_of(rank: int, step: int, ranks: int) -> int:
    """Return a rank's peer: ranks of the lower half pair with the upper half.

    The pairs shift by one rank with each step.
    """
    half = ranks // 2
    return (step + rank) % half + half if rank < half else (rank - half - step) % half

"""Buffers small enough for every rank to sum whole: one wait, not three.

A rank copies its contribution into memory that all share, in one of two areas in turn, and reads all ranks'
areas from there. An area may be written again once every rank has filled the other one, because it has read
this one before; to sum the turn between, a rank waits for that in any case. Sums are taken in the order of
ranks, so all hold the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns  # bound here: the module's own is replaced for scripts
from typing import Any

import torch

from ronde.comm.buffer import InOwnMemory, Source
from ronde.comm.reductions import REDUCTIONS, reduce_into
from ronde.comm.waiting import Counters

__all__ = ["SmallBuffer"]


class SmallBuffer(InOwnMemory):
    """One buffer on this rank; made by `allocate_shared`. Gradients lie in the rank's own memory.

    Args:
        areas: two areas of every rank, [numel] each.
        counters: the counts of this buffer's fillings by each rank, in `word`.
        comm: the group, whose backend is shared memory.
    """

    def __init__(
        self, areas: Sequence[Sequence[torch.Tensor]], counters: Counters, word: int, comm: Any
    ) -> None:
        super().__init__(torch.zeros_like(areas[0][comm.rank]))
        self._areas = areas
        self._counters = counters
        self._word = word
        self._comm = comm
        self._turn = 0
        self._number = self._launched = 0
        self._summed = False

    def launch(self, sources: Sequence[Source] = ()) -> None:
        assert not sources
        comm, flat = self._comm, self._storage.tensor
        self._number = comm.announce("all_reduce", flat)
        self._launched = perf_counter_ns()
        self._turn += 1
        self._summed = False
        self._areas[self._turn % 2][comm.rank].copy_(flat)
        self._counters.tell(self._word, self._turn)

    def advance(self) -> bool:
        if not self._summed and self._counters.come(self._word, self._turn):
            self._sum()
        return self._summed

    def reduce(self) -> None:
        if self._summed:
            return
        if not self._counters.come(self._word, self._turn):
            waiting = self._comm.backend.shared.waiting
            self._comm.block(lambda: waiting.until(self._counters, self._word, self._turn), self._number)
        self._sum()

    def collect(self) -> None:
        """No-op: the whole is summed already."""

    def settle(self) -> None:
        """No-op: peers read this rank's area before its next turn."""

    def _sum(self) -> None:
        self._summed = True
        flat = self._storage.tensor
        reduce_into(flat, self._areas[self._turn % 2], REDUCTIONS["sum"])
        flat.div_(self._comm.world_size)
        self._comm.tell("all_reduce", self._launched, flat.nbytes)

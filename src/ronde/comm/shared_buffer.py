"""Buffers in memory shared by the ranks of a host.

Each rank sums one part of every buffer, reading its peers' memory, and then copies the parts that the others
have summed. No other rank reads its contribution to its own part, which may lie anywhere. Every rank counts
three steps for each buffer: filled, summed, taken. Buffers do not wait for each other, so a rank sums one as
soon as all have filled it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from time import perf_counter_ns  # bound here: the module's own is replaced for scripts
from typing import Any

import torch

from ronde.comm.buffer import Buffer, FlatStorage, Source
from ronde.comm.reductions import REDUCTIONS, reduce_into
from ronde.comm.small_buffer import SmallBuffer
from ronde.comm.split import equal_parts, round_up
from ronde.comm.waiting import Counters

__all__ = ["SharedBuffer", "allocate_shared"]

_FILLED, _SUMMED, _TAKEN, _ELSEWHERE = range(4)
_WORDS = 8  # one cache line for each buffer
_LINE = 64
_PAGE = 4096
# A block stays in the cache until it has been divided; with smaller ones, the calls cost more.
_BLOCK = 1 << 20
# A buffer is read whole by every rank if the peers' memory is at most so much, all together.
_SMALL = 256 << 10


class SharedBuffer:
    """One buffer on this rank; made by `allocate_shared`.

    Args:
        parts: the buffer's memory on every rank, [numel] each.
        comm: the group, whose backend is shared memory.
    """

    def __init__(self, parts: Sequence[torch.Tensor], counters: Counters, words: int, comm: Any) -> None:
        self._comm = comm
        self._shared = comm.backend.shared
        self._counters = counters
        self._words = words
        self._parts = list(parts)
        self._storage = FlatStorage(self._parts[comm.rank])
        self._open = self._storage.tensor
        self._begin = self._open.data_ptr()
        self._turn = 0
        self._number = self._launched = 0
        self._summed = False
        self._bounds = _bounds(self._open, comm.world_size)
        self._sources: Sequence[Source] = ()

    @property
    def address(self) -> int:
        return self._storage.tensor.data_ptr()

    def open(self, users: int) -> tuple[torch.Tensor, bool]:
        """Return this rank's shared memory, or ordinary memory while gradients there are still referenced."""
        shared = self._storage.tensor
        # `share_memory_()` of a gradient here replaces the memory of all of them by memory that no peer sees.
        same = shared.data_ptr() == self._begin and self._storage.users() <= users
        self._open = shared if same else torch.zeros_like(shared)
        return self._open, same

    @property
    def own(self) -> tuple[int, int]:
        return self._bounds[self._comm.rank]

    def launch(self, sources: Sequence[Source] = ()) -> None:
        self._sources = sources
        self._number = self._comm.announce("all_reduce", self._open)
        self._launched = perf_counter_ns()
        self._turn += 1
        self._summed = False
        if self._open is not self._storage.tensor:
            self._counters.own[self._words + _ELSEWHERE] = self._turn
        self._counters.tell(self._words + _FILLED, self._turn)

    def advance(self) -> bool:
        if not self._summed and self._counters.come(self._words + _FILLED, self._turn):
            self._sum()
        return self._summed

    def reduce(self) -> None:
        if not self._summed:
            self._wait(_FILLED)
            self._sum()

    def collect(self) -> None:
        if self._travels():
            self._travel()
            return
        self._wait(_SUMMED)
        for rank, (begin, end) in enumerate(self._bounds):
            if rank != self._comm.rank:
                self._open[begin:end].copy_(self._parts[rank][begin:end])
        self._counters.tell(self._words + _TAKEN, self._turn)

    def settle(self) -> None:
        self._wait(_TAKEN)
        self._comm.tell("all_reduce", self._launched, self._open.nbytes)

    def _sum(self) -> None:
        self._summed = True
        if not self._travels():
            self._sum_part()
            self._sources = ()
        self._counters.tell(self._words + _SUMMED, self._turn)

    def _sum_part(self) -> None:
        begin, end = self.own
        for start, source in self._sources:
            self._sum_from(begin, self._open[begin:start])
            begin = start + source.numel()
            self._sum_from(start, source)
        self._sum_from(begin, self._open[begin:end])

    def _sum_from(self, begin: int, source: torch.Tensor) -> None:
        """Put the mean of `source` and the peers' memory into this rank's.

        It is written from element `begin` on.
        """
        others = [part for rank, part in enumerate(self._parts) if rank != self._comm.rank]
        block = _BLOCK // source.element_size()
        end = begin + source.numel()
        for start in range(begin, end, block):
            stop = min(end, start + block)
            mine = self._open[start:stop]
            first = source[start - begin : stop - begin]
            reduce_into(mine, [first, *(part[start:stop] for part in others)], REDUCTIONS["sum"])
            mine.div_(self._comm.world_size)

    def _travels(self) -> bool:
        """Return whether some rank's data lie in ordinary memory.

        All ranks know it once all have filled theirs.
        """
        return any(words[self._words + _ELSEWHERE] == self._turn for words in self._counters.all)

    def _travel(self) -> None:
        """Average by way of the group's shared areas, if some rank's data lie elsewhere."""
        shared, flat = self._shared, self._open
        for begin, source in self._sources:
            flat[begin : begin + source.numel()].copy_(source)
        self._sources = ()
        self._comm.block(lambda: shared.all_reduce(flat), self._number)
        flat.div_(self._comm.world_size)
        self._counters.tell(self._words + _TAKEN, self._turn)

    def _wait(self, step: int) -> None:
        word = self._words + step
        if not self._counters.come(word, self._turn):
            waiting = self._shared.waiting
            self._comm.block(lambda: waiting.until(self._counters, word, self._turn), self._number)


def allocate_shared(shapes: Sequence[tuple[int, torch.dtype]], comm: Any) -> list[Buffer]:
    """Allocate buffers of these numbers of elements and dtypes (collective).

    Raises:
        LaunchError: the memory does not suffice; raised on all ranks.
    """
    header = round_up(len(shapes) * _WORDS * 8, _PAGE)
    sizes = [round_up(numel * dtype.itemsize, _LINE) for numel, dtype in shapes]
    areas = [2 if size * (comm.world_size - 1) <= _SMALL else 1 for size in sizes]
    begins = list(itertools.accumulate(map(operator.mul, sizes, areas), initial=header))
    shared = comm.backend.shared
    maps = shared.allocate(begins[-1])
    words = [memoryview(each) for each in maps]
    counters = Counters(words, comm.rank, len(shapes) * _WORDS, shared.waiting.bell)
    buffers: list[Buffer] = []
    for place, (numel, dtype) in enumerate(shapes):
        # A tensor of the memory itself for each buffer: references to one are not counted for another.
        parts = [
            [torch.frombuffer(each, dtype=dtype, count=numel, offset=begin) for each in maps]
            for begin in range(begins[place], begins[place + 1], sizes[place])
        ]
        word = place * _WORDS
        if len(parts) == 2:
            buffers.append(SmallBuffer(parts, counters, word, comm))
        else:
            buffers.append(SharedBuffer(parts[0], counters, word, comm))
    return buffers


def _bounds(tensor: torch.Tensor, ranks: int) -> list[tuple[int, int]]:
    """Return begin and end of each rank's part, cut at cache lines."""
    line = max(1, _LINE // tensor.element_size())
    return equal_parts(tensor.numel(), ranks, line)

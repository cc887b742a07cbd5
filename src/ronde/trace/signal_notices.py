"""From which collective on each rank of a host had received how many signals, in shared memory.

A rank writes an entry before a collective when it has received something since the last one that it wrote.
After a collective in which every rank hears of every other, all entries that begin there or before have been
written: whoever reads those alone finds the same as everybody else, whenever each of them reads.

    heads:     for each rank the number from which its latest entry holds; 0: none yet
    per rank:  SLOTS entries (counts, number from which they hold)
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

__all__ = ["SignalNotices"]

# Of its own entries a rank has only so many on the way; with those before no slot is written that is read.
SLOTS = 8
_ON_THE_WAY = 4


class SignalNotices:
    """One rank's view of them.

    Args:
        memory, begin: where they lie, in `size(ranks, signals)` bytes.
        rank: whose entries to write, counted on this host.
        signals: how many signals are counted.
    """

    def __init__(self, memory: mmap.mmap, begin: int, rank: int, ranks: int, signals: int) -> None:
        self._memory = memory
        self._entry = _entry(signals)
        self._heads = slice(begin, begin + ranks * _HEAD.size)
        self._own_head = begin + rank * _HEAD.size
        ring = SLOTS * self._entry.size
        self._entries = slice(self._heads.stop, self._heads.stop + ranks * ring)
        self._own = self._entries.start + rank * ring
        self._written = 0
        self._on_the_way: list[int] = []
        self._read = bytes(ranks * _HEAD.size)

    @staticmethod
    def size(ranks: int, signals: int) -> int:
        return ranks * (_HEAD.size + SLOTS * _entry(signals).size)

    def write(self, number: int, counts: Sequence[int]) -> bool:
        """From collective `number` on this rank had received so many; False: this is to be tried again."""
        if len(self._on_the_way) == _ON_THE_WAY:
            return False
        place = self._own + self._written % SLOTS * self._entry.size
        self._entry.pack_into(self._memory, place, *counts, number)
        _HEAD.pack_into(self._memory, self._own_head, number)
        self._written += 1
        self._on_the_way.append(number)
        return True

    def most(self, number: int) -> tuple[int, ...] | None:
        """Of each signal the most that any rank had received at `number`; None: as when it was asked last.

        To be asked when that collective is over and none was begun after it: then other ranks are not far
        ahead, and all are given the same.
        """
        heads = self._memory[self._heads]
        if heads == self._read:
            return None
        if all(head <= number for (head,) in _HEAD.iter_unpack(heads)):
            self._read = heads
        self._on_the_way = [each for each in self._on_the_way if each > number]
        entries = self._entry.iter_unpack(self._memory[self._entries])
        # Counts grow: the most of all entries is that of the latest ones.
        told = [counts for *counts, begin in entries if begin <= number]
        return tuple(map(max, zip(*told, strict=True)))


# Native, so that a number is written in one go.
_HEAD = struct.Struct("Q")


def _entry(signals: int) -> struct.Struct:
    return struct.Struct(f"{signals + 1}Q")

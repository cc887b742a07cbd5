"""Memory of messages, which their sender owns and their receiver opens.

A sender keeps the memory that it has allocated and writes the next message there once the receiver has read
the last.
"""

from __future__ import annotations

import collections
import dataclasses
import mmap
import os

import torch

from ronde.comm.shared_segment import map_memory, map_of_peer, reserve
from ronde.comm.split import round_up

__all__ = ["FILLED", "TAKEN", "MemoryBlock", "MessageMemory", "PeerMemory"]

# Words at the beginning of a block, each in a cache line of its own: bytes that the sender has written so
# far, and whether the receiver has read them all.
FILLED, TAKEN = 0, 8
_HEADER = 128
_WORDS = _HEADER // 8
_LEAST = 4096
# Small blocks share a segment: a segment costs an open file.
_SEGMENT = 1 << 20
# Bytes of unused memory that one process keeps open.
_KEPT = 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A block of memory for one message.

    Attributes:
        address: numbers by which the receiver finds it: segment, its descriptor, inode and size; offset in
            it.
        words: the words `FILLED` and `TAKEN`.
        payload: [capacity] bytes.
    """

    address: tuple[int, int, int, int, int]
    words: memoryview
    payload: torch.Tensor


class MessageMemory:
    """The blocks of one sender."""

    def __init__(self) -> None:
        self._numbers = 0
        self._free: dict[int, list[MemoryBlock]] = collections.defaultdict(list)
        self._busy: dict[int, list[MemoryBlock]] = collections.defaultdict(list)

    def take(self, nbytes: int) -> MemoryBlock:
        """Return a block for a message of `nbytes`, neither filled nor taken.

        Raises:
            OSError: the memory does not suffice.
        """
        capacity = _capacity(nbytes)
        free = self._free[capacity]
        if not free:
            self._recycle()
        if not free:
            self._allocate(capacity)
        block = free.pop()
        block.words[FILLED] = block.words[TAKEN] = 0
        self._busy[capacity].append(block)
        return block

    def close(self) -> None:
        """Release all blocks; a receiver may still read blocks that it has opened."""
        for blocks in (*self._free.values(), *self._busy.values()):
            for block in blocks:
                _close(block)
        self._free.clear()
        self._busy.clear()

    def _recycle(self) -> None:
        kept = 0
        for capacity, busy in self._busy.items():
            self._free[capacity] += [block for block in busy if block.words[TAKEN]]
            self._busy[capacity] = [block for block in busy if not block.words[TAKEN]]
        for capacity, free in self._free.items():
            if capacity + _HEADER > _SEGMENT // 2:  # a block with a segment of its own
                while free and kept + capacity * len(free) > _KEPT:
                    _close(free.pop())
                kept += capacity * len(free)

    def _allocate(self, capacity: int) -> None:
        size = capacity + _HEADER
        count = max(1, _SEGMENT // size)
        descriptor = reserve(size * count)
        try:
            memory = map_memory(descriptor, size * count)
        except OSError:
            os.close(descriptor)
            raise
        number, inode = self._numbers, os.fstat(descriptor).st_ino
        self._numbers += 1
        words, payload = _views(memory)
        for offset in range(0, size * count, size):
            self._free[capacity].append(
                MemoryBlock(
                    (number, descriptor, inode, size * count, offset),
                    words[offset // 8 : offset // 8 + _WORDS],
                    payload[offset + _HEADER : offset + size],
                )
            )


class PeerMemory:
    """The blocks of one sender as a receiver sees them.

    Args:
        pid: process number of the sender.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._open: collections.OrderedDict[int, tuple[memoryview, torch.Tensor]] = collections.OrderedDict()

    def block(self, address: tuple[int, int, int, int, int], nbytes: int) -> MemoryBlock:
        """Return the first `nbytes` of the block at this address.

        Raises:
            OSError: the sender's memory cannot be opened.
        """
        number, descriptor, inode, size, offset = address
        views = self._open.get(number)
        if views is None:
            views = self._open[number] = _views(map_of_peer(self._pid, descriptor, inode, size))
            while len(self._open) > 1 and sum(len(each) for _, each in self._open.values()) > _KEPT:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(number)
        words, payload = views
        begin = offset + _HEADER
        return MemoryBlock(
            address, words[offset // 8 : offset // 8 + _WORDS], payload[begin : begin + nbytes]
        )


def _views(memory: mmap.mmap) -> tuple[memoryview, torch.Tensor]:
    with torch.inference_mode(False):  # tensors made in inference mode could not be written outside of it
        return memoryview(memory).cast("Q"), torch.frombuffer(memory, dtype=torch.uint8)


def _capacity(nbytes: int) -> int:
    """Round a size up by at most a quarter: similar messages then share memory."""
    if nbytes <= _LEAST:
        return _LEAST
    step = 1 << max(12, (nbytes - 1).bit_length() - 3)
    return round_up(nbytes, step)


def _close(block: MemoryBlock) -> None:
    _, descriptor, _, _, offset = block.address
    if offset == 0:  # the first block of its segment closes it
        os.close(descriptor)

"""Counts of signals by rank and optimizer step, in a host's shared memory.

A rank writes its entry of a step when it reaches it, and never again. Every rank that reads the entries of
one step after all ranks have written them finds the same numbers, whenever it reads.

    per rank:  SLOTS entries (counts, number)
    number:    the step, plus one; 0 while empty
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from ronde.trace.shared_file import shared_file

__all__ = ["SignalBoard"]

# A rank reads the entries of the step before its own, and others may be one or two steps ahead of it.
SLOTS = 8
_ENDED = 2**64 - 1


class SignalBoard:
    """One rank's view of the board: it writes its own entries and reads all.

    Args:
        path: the file, the same for all `ranks` processes.
        rank: the number of the rank on this host.
        signals: the number of counted signals.
    """

    def __init__(self, path: Path, rank: int, ranks: int, signals: int) -> None:
        # The number is last: an entry counts when its number is written.
        self._entry = struct.Struct(f"<{signals + 1}Q")
        size = SLOTS * self._entry.size
        self._memory = shared_file(path, ranks * size, make=True)
        self._rings = [each * size for each in range(ranks)]
        self._own = rank * size
        self._nothing = (0,) * signals
        self._step = 0

    def write(self, step: int, counts: Sequence[int]) -> None:
        """Write this rank's counts of signals at `step`."""
        self._step = step
        place = self._own + step % SLOTS * self._entry.size
        self._entry.pack_into(self._memory, place, *counts, step + 1)

    def most(self, step: int) -> tuple[int, ...] | None:
        """Return each signal's largest count over ranks at `step`.

        Returns None until all ranks have reached the step. Ranks do not count that have written nothing yet,
        or only later steps, or that have ended.
        """
        offset, read, memory = step % SLOTS * self._entry.size, self._entry.unpack_from, self._memory
        most = self._nothing
        for ring in self._rings:
            *counts, number = read(memory, ring + offset)
            if number == step + 1:
                if any(counts):
                    most = tuple(map(max, most, counts))
            elif 0 < self._latest(ring) <= step:
                return None
        return most

    def close(self) -> None:
        """End this rank's entries; slower ranks can still read its latest two."""
        for slot in {*range(SLOTS)} - {step % SLOTS for step in (self._step, self._step - 1)}:
            self._entry.pack_into(self._memory, self._own + slot * self._entry.size, *self._nothing, _ENDED)
        self._memory.close()

    def _latest(self, ring: int) -> int:
        places = range(ring, ring + SLOTS * self._entry.size, self._entry.size)
        return max(self._entry.unpack_from(self._memory, place)[-1] for place in places)

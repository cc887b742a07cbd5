"""How often each rank of a host has received each signal, as of each optimizer step, in shared memory.

A rank writes its entry of a step when it comes there, and never again. Whoever reads the entries of one step
after all ranks have written them finds the same numbers as everybody else, whenever each of them reads.

    per rank:  header (number of the latest entry), then SLOTS entries (number, counts)
    number:    that of the step, and one more; 0: none yet
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from ronde.trace.shared_file import shared_file

__all__ = ["SignalBoard"]

# A rank reads the entries of the step before its own, and others may be one or two steps ahead of it.
SLOTS = 8
_NUMBER = struct.Struct("<Q")
_HEADER_SIZE = 64
_ENDED = 2**64 - 1


class SignalBoard:
    """One rank's view of the board: it writes its own entries and reads all.

    Args:
        path: the file, the same for all `ranks` processes.
        rank: whose entries to write, counted on this host.
        signals: how many signals are counted.
    """

    def __init__(self, path: Path, rank: int, ranks: int, signals: int) -> None:
        self._entry = struct.Struct(f"<{1 + signals}Q")
        self._counts = struct.Struct(f"<{signals}Q")
        size = _HEADER_SIZE + SLOTS * self._entry.size
        self._memory = shared_file(path, ranks * size, make=True)
        self._headers = [each * size for each in range(ranks)]
        self._own = rank * size

    def write(self, step: int, counts: Sequence[int]) -> None:
        """This rank has come to `step`, and has received so many of each signal."""
        place = self._place(self._own, step)
        # The counts before the number: an entry counts when its number is there.
        self._counts.pack_into(self._memory, place + _NUMBER.size, *counts)
        _NUMBER.pack_into(self._memory, place, step + 1)
        _NUMBER.pack_into(self._memory, self._own, step + 1)

    def most(self, step: int) -> list[int] | None:
        """Of each signal the most that any rank had received at `step`; None until all have come there.

        Nobody waits for ranks that have written nothing yet, or only of later steps, or that have ended.
        """
        found: list[tuple[int, ...]] = []
        for header in self._headers:
            latest = _NUMBER.unpack_from(self._memory, header)[0]
            if 0 < latest <= step:
                return None
            number, *counts = self._entry.unpack_from(self._memory, self._place(header, step))
            if number == step + 1:
                found.append(tuple(counts))
        return [max(each) for each in zip(*found, strict=True)]

    def close(self) -> None:
        """This rank comes to no further step."""
        _NUMBER.pack_into(self._memory, self._own, _ENDED)
        self._memory.close()

    def _place(self, header: int, step: int) -> int:
        return header + _HEADER_SIZE + step % SLOTS * self._entry.size

"""Board in shared memory with a ring of lockstep entries for each local rank.

Every rank records its next operation together with its peers, under a number that counts equally on all
ranks. The second rank at a number finds its peer's entry there and compares: two memory copies, no message.
The file is in the run directory, so the launcher can read where each rank waits, even if ranks are stopped or
dead.

    per rank:  header (number waited for, since, state), then SLOTS entries (number, entered, left, text)
    text:      what, a zero byte, where

A rank enters an operation when it writes the entry, and leaves it when it has waited for its peers;
operations without a wait are never left.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic  # bound here: the module's own is replaced for scripts
from typing import Any

from ronde.trace.shared_file import shared_file

__all__ = ["BoardEntry", "BoardPosition", "BoardState", "LockstepBoard", "board_path"]

SLOTS = 64
_HEADER = struct.Struct("<QdQ")
_STAMP = struct.Struct("<Qdd")
_TIME = struct.Struct("<d")
_LEFT = 16
_NUMBER = struct.Struct("<Q")
_HEADER_SIZE = 64
_TEXT_SIZE = 232
_ENTRY_SIZE = _STAMP.size + _TEXT_SIZE
_RANK_SIZE = _HEADER_SIZE + SLOTS * _ENTRY_SIZE
_MOST_TEXTS = 4096
# A peer may be in the middle of writing, so a difference counts only if a second reading shows it too.
_SETTLE_S = 0.002
# Seconds to wait for the entry of a third rank, which shows which of two is the odd one.
_LATE_S = 0.5
# The number of an entry, as a peer reads it.
_ARRIVAL = struct.Struct("<Qd")


class BoardState(enum.IntEnum):
    """State of a rank; ABSENT until it has opened the board."""

    ABSENT = 0
    RUNNING = 1
    WAITING = 2
    ENDED = 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BoardEntry:
    """Operation of a rank under a number, with the line of the script.

    Attributes:
        time: time of its arrival, by the monotonic clock.
        left: time at which all its peers had arrived; 0 before that, or if it does not wait.
    """

    rank: int
    number: int
    time: float
    what: str
    where: str
    left: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BoardPosition:
    """State of a rank: in `entry` while it waits, else after it.

    `since` is the time of the last change by the monotonic clock, which all processes of a host share.
    """

    rank: int
    state: BoardState
    since: float
    entry: BoardEntry | None

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> BoardPosition:
        """Invert `dataclasses.asdict`, also after JSON."""
        entry = fields["entry"]
        known = None if entry is None else BoardEntry(**entry)
        return cls(**{**fields, "state": BoardState(fields["state"]), "entry": known})


def board_path(directory: Path, group: str) -> Path:
    """The file of the board of the group of that name."""
    return directory / f"{group}.board"


class LockstepBoard:
    """One rank's view of the board: it writes its own ring and reads all.

    Args:
        path: the file, the same for all `ranks` processes.
        rank: rank that owns the ring to write, counted on this host; None: only look.
    """

    def __init__(self, path: Path, rank: int | None, ranks: int) -> None:
        self._memory = shared_file(path, ranks * _RANK_SIZE, make=rank is not None)
        self._ranks = ranks
        self._rank = rank
        self._number = self._waited_for = 0
        self._texts: dict[tuple[str, str], bytes] = {}
        self._peers = [each * _RANK_SIZE + _HEADER_SIZE for each in range(ranks) if each != rank]
        self._header = (rank or 0) * _RANK_SIZE
        self._ring = self._header + _HEADER_SIZE
        if rank is not None:
            self._stand(BoardState.RUNNING, 0)

    def record(self, what: str, where: str) -> int:
        """Record this rank's next operation; return its number for `differing`."""
        number = self._number = self._number + 1
        self._write(number, what, where)
        return number

    def differs(self, number: int) -> bool:
        """Return whether a peer has recorded something else under `number`."""
        memory, offset = self._memory, number % SLOTS * _ENTRY_SIZE
        own = self._ring + offset + _STAMP.size
        text = memory[own : own + _TEXT_SIZE]
        for peer in self._peers:
            place = peer + offset
            if _NUMBER.unpack_from(memory, place)[0] == number:
                theirs = place + _STAMP.size
                if memory[theirs : theirs + _TEXT_SIZE] != text:
                    return True
        return False

    def lateness(self, number: int) -> float | None:
        """Return by how many seconds this rank arrived after the latest other rank.

        None while a peer has yet to arrive.
        """
        if not self._peers:
            return None
        latest = 0.0
        offset, before = number % SLOTS * _ENTRY_SIZE, (number - 1) % SLOTS * _ENTRY_SIZE
        for peer in self._peers:
            theirs, since = _ARRIVAL.unpack_from(self._memory, peer + offset)
            if theirs != number:
                return None
            if since < _ARRIVAL.unpack_from(self._memory, peer + before)[1]:
                return 0.0  # its time is being written, so it has arrived just now
            latest = max(latest, since)
        return max(0.0, monotonic() - latest)

    def differing(self, number: int) -> tuple[BoardEntry, ...]:
        """Return the entries of all ranks under `number` if they differ, else nothing."""
        if not self.differs(number):
            return ()
        time.sleep(_SETTLE_S)
        if not self.differs(number):
            return ()
        until = monotonic() + _LATE_S
        while True:
            found = [self._entry(rank, number) for rank in range(self._ranks)]
            if None not in found or monotonic() > until:
                return tuple(entry for entry in found if entry is not None)
            time.sleep(_SETTLE_S)

    def first_difference(self) -> tuple[BoardEntry, ...]:
        """Return the entries under the earliest number in the ring where ranks differ."""
        for number in range(max(1, self._number - SLOTS + 1), self._number + 1):
            entries = self.differing(number)
            if entries:
                return entries
        return ()

    def waits(self, number: int) -> None:
        """Record that this rank waits for its peers at `number`."""
        self._waited_for = number
        self._stand(BoardState.WAITING, number)

    def goes_on(self) -> None:
        now, number = monotonic(), self._waited_for
        place = self._ring + number % SLOTS * _ENTRY_SIZE
        if _NUMBER.unpack_from(self._memory, place)[0] == number:
            _TIME.pack_into(self._memory, place + _LEFT, now)
        _HEADER.pack_into(self._memory, self._header, self._number, now, BoardState.RUNNING)

    def ends(self) -> None:
        """Record that this rank has ended and will join no further collective."""
        self._stand(BoardState.ENDED, self._number)

    def standings(self) -> Sequence[BoardPosition]:
        """Return the standing of every rank, in the order of ranks."""
        found: list[BoardPosition] = []
        for rank in range(self._ranks):
            number, since, state = _HEADER.unpack_from(self._memory, rank * _RANK_SIZE)
            latest = self._entry(rank, number) or self._latest(rank)
            if latest is not None and state == BoardState.RUNNING:
                latest = self._latest(rank)
            since = max(since, latest.time) if latest is not None and state == BoardState.RUNNING else since
            found.append(BoardPosition(rank=rank, state=BoardState(state), since=since, entry=latest))
        return found

    def entries(self, rank: int) -> Sequence[BoardEntry]:
        """Return the entries still in a rank's ring, the oldest first."""
        latest = self._latest(rank)
        numbers = range(max(1, latest.number - SLOTS + 1), latest.number + 1) if latest is not None else ()
        found = (self._entry(rank, number) for number in numbers)
        return [entry for entry in found if entry is not None]

    def close(self) -> None:
        self._memory.close()

    def _stand(self, state: BoardState, number: int) -> None:
        _HEADER.pack_into(self._memory, self._header, number, monotonic(), state)

    def _write(self, number: int, what: str, where: str) -> None:
        place = self._ring + number % SLOTS * _ENTRY_SIZE
        # The text before the number: an entry counts when its number is there.
        text = place + _STAMP.size
        self._memory[text : text + _TEXT_SIZE] = self._text(what, where)
        _STAMP.pack_into(self._memory, place, number, monotonic(), 0.0)

    def _entry(self, rank: int, number: int) -> BoardEntry | None:
        place = rank * _RANK_SIZE + _HEADER_SIZE + number % SLOTS * _ENTRY_SIZE
        found, when, left = _STAMP.unpack_from(self._memory, place)
        if found != number or number == 0:
            return None
        text = self._memory[place + _STAMP.size : place + _ENTRY_SIZE].rstrip(b"\0")
        what, _, where = text.decode("utf-8", "replace").partition("\0")
        return BoardEntry(rank=rank, number=number, time=when, what=what, where=where, left=left)

    def _latest(self, rank: int) -> BoardEntry | None:
        ring = rank * _RANK_SIZE + _HEADER_SIZE
        numbers = [_NUMBER.unpack_from(self._memory, ring + slot * _ENTRY_SIZE)[0] for slot in range(SLOTS)]
        return self._entry(rank, max(numbers))

    def _text(self, what: str, where: str) -> bytes:
        """Encode both texts in the space of an entry.

        A long path keeps its end, a long description its start.
        """
        text = self._texts.get((what, where))
        if text is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            place = where.encode("utf-8", "replace")[-_TEXT_SIZE // 2 :]
            space = _TEXT_SIZE - len(place) - 1
            text = what.encode("utf-8", "replace")[:space] + b"\0" + place
            text = self._texts[what, where] = text.ljust(_TEXT_SIZE, b"\0")
        return text

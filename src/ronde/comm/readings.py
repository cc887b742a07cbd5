"""What the main rank reads from the clock, for the other ranks of its host: in shared memory, no meeting.

A loop that waits for something reads the clock as often as it turns, which is another number of times on each
rank. So the main rank writes down what it reads, at which place of the script and in which *step* (after how
many beginnings of collectives), in a ring, and goes on. Another rank takes the next reading of its own place
and step. Where there is none it waits, until there is one or the main rank has come to a later step: then
that has turned less often, and this rank's own clock is as good.

    per rank: step, number of readings (of another rank: how many it has passed), the bell, SLOTS readings
    reading:  its number, place, step, and a value of two words; it counts when its number is there
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ronde.comm.bell import Bell
from ronde.comm.lockstep_check import LockstepCheck
from ronde.comm.shared_segment import share
from ronde.comm.waiting import Waiting
from ronde.errors import PeerLost

__all__ = ["Readings"]

SLOTS = 4096
_STEP, _COUNT = 0, 1
_BELL = 64
_RING = (_BELL + Bell.NBYTES) // 8
_WORDS = 5
_ENDED = 2**64 - 1
# How long the main rank waits for one that has passed nothing of a whole ring: it has its own clock then.
_PATIENCE_S = 60.0


class Readings:
    """One rank's view of what the main rank (0) reads.

    Args:
        rank: this rank among all, which share a host.
        exchange: gathers three integers from every rank, in order; a collective.
        timeout: how many seconds to wait for the main rank.
        check: where it is noted that this rank waits, and in which line.

    Raises:
        LaunchError: when memory cannot be shared; raised on all ranks.
    """

    def __init__(
        self,
        rank: int,
        exchange: Callable[[tuple[int, int, int]], Sequence[tuple[int, int, int]]],
        *,
        timeout: float,
        check: LockstepCheck | None = None,
    ) -> None:
        self._check = check
        maps, pids = share((_RING + SLOTS * _WORDS) * 8, rank, exchange)
        words = [memoryview(part).cast("Q") for part in maps]
        self._main, self._own = words[0], words[rank]
        self._peers = [(each, part) for each, part in enumerate(words) if each != rank]
        self._bell = Bell(rank, maps, _BELL)
        self._waiting = Waiting(
            rank,
            pids,
            numbers=range(len(pids)),
            bell=self._bell,
            timeout=timeout if rank else _PATIENCE_S,
            left=lambda _: False,  # its step tells
        )
        self._steps: Iterator[int] = itertools.count(1)
        self._passed = 0
        self._full_at = SLOTS

    def begin(self) -> None:
        """This rank begins a collective, or what all ranks do alike."""
        self._own[_STEP] = next(self._steps)
        self._bell.ring()

    def end(self) -> None:
        """This rank reads nothing any more, and nobody waits for it; a second call does nothing."""
        self._steps = itertools.repeat(_ENDED)
        self.begin()
        self._waiting.close()

    def tell(self, place: int, value: tuple[int, int]) -> None:
        """On the main rank: what it has read, in two words."""
        main = self._main
        count = main[_COUNT]
        if count >= self._full_at:
            try:
                for peer, words in self._peers:
                    self._waiting.until_true(lambda words=words: self._may_go(count - SLOTS, words), (peer,))
            except PeerLost:  # which is found where ranks meet
                self._full_at = count + SLOTS
        at = _at(count)
        main[at] = 0
        main[at + 1], main[at + 2], main[at + 3], main[at + 4] = place, main[_STEP], *value
        main[at] = count + 1
        main[_COUNT] = count + 1
        self._bell.ring()

    def take(self, place: int) -> tuple[int, int] | None:
        """On another rank: what the main rank has read in its place; None: it has not come there.

        Raises:
            PeerLost: when the main rank has died, or did not come in time.
        """
        main, step = self._main, self._own[_STEP]
        found: int | None = None
        looked = self._passed

        def come() -> bool:
            nonlocal found, looked
            # In this order: what was read before a later step began is there by then.
            is_later = main[_STEP] > step
            count = main[_COUNT]
            self._passed = max(self._passed, count - SLOTS)
            for number in range(max(looked, self._passed), count):
                at = _at(number)
                if main[at + 2] < step:
                    self._passed = number + 1
                elif main[at + 1] == place and main[at + 2] == step and main[at] == number + 1:
                    found = number
                    return True
            looked = count
            # Where the ring is full, the main rank waits for this one.
            return is_later or count - self._passed >= SLOTS

        if not come():
            self._wait(come)
        if found is None:
            return None
        at = _at(found)
        value = main[at + 3], main[at + 4]
        if main[at] != found + 1:  # written over, after the main rank's patience
            return None
        self._own[_COUNT] = self._passed = found + 1
        self._bell.ring()
        return value

    def _wait(self, come: Callable[[], bool]) -> None:
        """Where the main rank is lost, the board goes on to say where this one waited for it."""
        if self._check is not None:
            self._check.waits_beside("a reading of the clock")
        self._waiting.until_true(come, (0,))
        if self._check is not None:
            self._check.goes_on()

    def _may_go(self, number: int, words: Sequence[int]) -> bool:
        """Whether a reading is none of those that a peer may yet take."""
        return words[_COUNT] > number or words[_STEP] > self._main[_at(number) + 2]


def _at(number: int) -> int:
    return _RING + number % SLOTS * _WORDS

"""Waits for other ranks of a host: spins, then yields the core, then sleeps.

Spinning answers within a microsecond, but a rank that spins keeps a core from the rank it waits for when
there are more ranks than cores. So it yields after some looks, and sleeps after a while, which is shorter
where ranks share cores, until a peer rings. Between naps it looks whether a peer has died.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from pathlib import Path

# Bound at import: the module's own are replaced for scripts.
from time import monotonic, perf_counter_ns

from ronde.comm.bell import Bell
from ronde.errors import PeerLost

__all__ = ["Counters", "Waiting"]

_SPINS = 200
_YIELD_NS = 2_000_000
# Where ranks share cores, waiting ranks that yield take turns with computing ones: steps of 8 ranks on 2
# cores, some of them late, with an all-reduce of 4 MB took 0.7 times as long as with the limit above.
_CROWDED_YIELD_NS = 200_000
# A stroke of the bell may be missed, and a death rings no bell.
_NAP_MS = 2
# A suspended job is resumed as a whole: looks are counted, not seconds, which pass meanwhile.
_STOPPED_LOOKS = 5_000
_LOOK_AT_STATE_EVERY = 250


class Counters:
    """Progress counters of the ranks of a host: each writes its own, reads all.

    Args:
        memory: memory of each rank's counters.
        rank: the number of this rank on this host.
        count: the number of counters of a rank; they lie at the beginning, 8 bytes each.
        bell: the bell that wakes ranks that wait for a counter.
    """

    def __init__(self, memory: Sequence[memoryview], rank: int, count: int, bell: Bell) -> None:
        self._bell = bell
        self.all = [part[: count * 8].cast("Q") for part in memory]
        self.own = self.all[rank]
        self.peers = [(each, words) for each, words in enumerate(self.all) if each != rank]

    def tell(self, word: int, value: int) -> None:
        """Set this rank's counter `word` to `value`, and wake sleeping peers."""
        self.own[word] = value
        self._bell.ring()

    def come(self, word: int, value: int) -> bool:
        """Return whether every peer's counter `word` has reached `value`."""
        return all(words[word] >= value for _, words in self.peers)


class Waiting:
    """Waits until peers have reached a point.

    Args:
        rank: the number of this rank among those that wait for each other.
        pids: process number of each of them.
        numbers: the numbers by which messages name each of them.
        bell: their bell, on which this rank sleeps.
        timeout: seconds.
        left: function that tells whether a peer has closed the group, though its process may live on.

    Attributes:
        bell: the bell of these ranks.
        timeout: seconds.
    """

    def __init__(
        self,
        rank: int,
        pids: Sequence[int],
        *,
        numbers: Sequence[int],
        bell: Bell,
        timeout: float,
        left: Callable[[int], bool],
    ) -> None:
        self.timeout = timeout
        self._left = left
        self._numbers = numbers
        self.bell = bell
        self._pids = pids
        crowded = len(pids) > len(os.sched_getaffinity(0))
        self._spins = 1 if crowded else _SPINS
        self._yield_ns = _CROWDED_YIELD_NS if crowded else _YIELD_NS
        self._deaths = select.poll()
        self._processes = {os.pidfd_open(pid): each for each, pid in enumerate(pids) if each != rank}
        self._gone: dict[int, str] = {}
        for descriptor in self._processes:
            self._deaths.register(descriptor, select.POLLIN)

    def until(self, counters: Counters, word: int, value: int) -> None:
        """Return when every peer's counter `word` has reached `value`.

        Raises:
            PeerLost: any peer has died, the awaited one is stopped, or time is up; it names the peer.
        """
        for peer, words in counters.peers:
            if words[word] < value:
                self._wait(_reached(words, word, value), (peer,), self._any_gone)

    def until_one(self, words: Sequence[int], word: int, value: int, peer: int) -> None:
        """Return when `words[word]`, which `peer` counts up, has reached `value`.

        Raises:
            PeerLost: the same as in `until`, but no other peer's death matters.
        """
        if words[word] < value:
            self._wait(_reached(words, word, value), (peer,), self._all_gone)

    def until_true(self, come: Callable[[], bool], peers: Sequence[int]) -> None:
        """Return when `come()` is true, which any of `peers` may cause.

        Raises:
            PeerLost: all of `peers` have died, or time is up.
        """
        if not come():
            self._wait(come, peers, self._all_gone)

    def close(self) -> None:
        """Close the handles of the peers' processes; a second call does nothing."""
        for descriptor in self._processes:
            os.close(descriptor)
        self._processes.clear()

    def _wait(
        self,
        come: Callable[[], bool],
        peers: Sequence[int],
        lost: Callable[[Sequence[int]], int | None],
    ) -> None:
        for _ in range(self._spins):
            if come():
                return
        patience = perf_counter_ns() + self._yield_ns
        while perf_counter_ns() < patience:
            os.sched_yield()
            if come():
                return
        self._sleep(come, peers, lost)

    def _sleep(
        self,
        come: Callable[[], bool],
        peers: Sequence[int],
        lost: Callable[[Sequence[int]], int | None],
    ) -> None:
        end = monotonic() + self.timeout
        looks = stopped = 0
        while not come():
            self.bell.sleep(come, _NAP_MS)
            self._look_for_deaths()
            if come():  # progress of a peer before its death counts
                return
            if (died := lost(peers)) is not None:
                raise PeerLost(f"{self.name(died)} {self._gone[died]}")
            looks += 1
            if looks % _LOOK_AT_STATE_EVERY == 0 and len(peers) == 1:
                stopped = stopped + _LOOK_AT_STATE_EVERY if _is_stopped(self._pids[peers[0]]) else 0
                if stopped >= _STOPPED_LOOKS:
                    raise PeerLost(f"{self.name(peers[0])} is stopped; `kill -CONT` lets it go on [R200]")
            if monotonic() > end:
                whom = " and ".join(self.name(peer) for peer in peers)
                raise PeerLost(f"{whom} did not come within {self.timeout:.0f} s [R200]")

    def _look_for_deaths(self) -> None:
        for descriptor, _ in self._deaths.poll(0):
            self._gone[self._processes[descriptor]] = "has died"
            self._deaths.unregister(descriptor)
        for peer in self._processes.values():
            if self._left(peer):
                self._gone.setdefault(peer, "has left its peers")

    def _any_gone(self, _: Sequence[int]) -> int | None:
        return next(iter(self._gone), None)

    def _all_gone(self, peers: Sequence[int]) -> int | None:
        return peers[0] if self._gone.keys() >= set(peers) else None

    def name(self, peer: int) -> str:
        """Return the name of a peer in messages."""
        return f"rank {self._numbers[peer]} (process {self._pids[peer]})"


def _reached(words: Sequence[int], word: int, value: int) -> Callable[[], bool]:
    return lambda: words[word] >= value


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False

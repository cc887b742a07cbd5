"""Waiting for the other ranks of a host: spin briefly, then yield the core, then sleep.

Spinning answers within a microsecond, but a rank that spins keeps a core from the rank it waits for when
there are more ranks than cores. So it yields after some looks, and sleeps after some milliseconds; the
sleep ends at once when a peer dies.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from pathlib import Path

# Bound at import: the module's own are replaced for scripts.
from time import monotonic, perf_counter_ns

from ronde.errors import PeerLost

__all__ = ["Counters", "Waiting"]

_SPINS = 200
_YIELD_NS = 2_000_000
_SLEEP_MS = 1
# A suspended job is resumed as a whole: looks are counted, not seconds, which pass meanwhile.
_STOPPED_LOOKS = 10_000
_LOOK_AT_STATE_EVERY = 500


class Counters:
    """Numbers by which each rank of a host tells how far it has come; it counts up its own and reads all.

    Args:
        memory: for each rank, what holds its numbers.
        rank: this rank, counted on this host.
        count: how many numbers a rank has; they lie at the beginning, 8 bytes each.
    """

    def __init__(self, memory: Sequence[memoryview], rank: int, count: int) -> None:
        self.all = [part[: count * 8].cast("Q") for part in memory]
        self.own = self.all[rank]
        self.peers = [(each, words) for each, words in enumerate(self.all) if each != rank]

    def come(self, word: int, value: int) -> bool:
        """Whether every peer's number `word` has come to `value`."""
        return all(words[word] >= value for _, words in self.peers)


class Waiting:
    """Waits until the numbers of peers have come to a value.

    Args:
        rank: this rank, counted on this host.
        pids: process number of each rank of the host.
        first_rank: number of the host's first rank among all ranks, for messages.
        timeout: seconds.

    Attributes:
        timeout: seconds.
    """

    def __init__(self, rank: int, pids: Sequence[int], *, first_rank: int = 0, timeout: float) -> None:
        self.timeout = timeout
        self._first_rank = first_rank
        self._pids = pids
        self._spins = _SPINS if len(pids) <= len(os.sched_getaffinity(0)) else 1
        self._deaths = select.poll()
        self._processes = {os.pidfd_open(pid): each for each, pid in enumerate(pids) if each != rank}
        for descriptor in self._processes:
            self._deaths.register(descriptor, select.POLLIN)

    def until(self, counters: Counters, word: int, value: int) -> None:
        """Return when every peer's number `word` has come to `value`.

        Raises:
            PeerLost: when a peer has died or is stopped, or time is up; it names the peer.
        """
        for peer, words in counters.peers:
            if words[word] < value:
                self._wait(peer, words, word, value)

    def until_one(self, counters: Counters, peer: int, word: int, value: int) -> None:
        """Return when the number `word` of `peer`, counted on this host, has come to `value`.

        Raises:
            PeerLost: as `until`.
        """
        words = counters.all[peer]
        if words[word] < value:
            self._wait(peer, words, word, value)

    def close(self) -> None:
        """Let go of the peers' processes; a second call does nothing."""
        for descriptor in self._processes:
            os.close(descriptor)
        self._processes.clear()

    def _wait(self, peer: int, words: memoryview, word: int, value: int) -> None:
        for _ in range(self._spins):
            if words[word] >= value:
                return
        patience = perf_counter_ns() + _YIELD_NS
        while perf_counter_ns() < patience:
            os.sched_yield()
            if words[word] >= value:
                return
        self._sleep(peer, words, word, value)

    def _sleep(self, peer: int, words: memoryview, word: int, value: int) -> None:
        end = monotonic() + self.timeout
        looks = stopped = 0
        while words[word] < value:
            died = self._deaths.poll(_SLEEP_MS)
            if words[word] >= value:
                return
            if died:
                raise PeerLost(f"{self._name(self._processes[died[0][0]])} has died")
            looks += 1
            if looks % _LOOK_AT_STATE_EVERY == 0:
                stopped = stopped + _LOOK_AT_STATE_EVERY if _is_stopped(self._pids[peer]) else 0
                if stopped >= _STOPPED_LOOKS:
                    raise PeerLost(f"{self._name(peer)} is stopped; `kill -CONT` lets it go on")
            if monotonic() > end:
                raise PeerLost(f"{self._name(peer)} did not come within {self.timeout:.0f} s")

    def _name(self, peer: int) -> str:
        return f"rank {peer + self._first_rank} (process {self._pids[peer]})"


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False

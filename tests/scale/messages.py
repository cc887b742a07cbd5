"""Messages among ranks that are threads, on clocks that count messages in sequence."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_S = 60.0


class _Sent:
    def wait(self) -> None:
        """The bytes were copied."""


class _Expected:
    def __init__(self, flat: torch.Tensor, arrivals: queue.SimpleQueue[Any], clocks: list[int], rank: int):
        self._flat, self._arrivals, self._clocks, self._rank = flat, arrivals, clocks, rank

    def wait(self) -> None:
        data, time = self._arrivals.get(timeout=PATIENCE_S)
        self._flat.copy_(data)
        self._clocks[self._rank] = max(self._clocks[self._rank], time)


class Network:
    """The messages of so many ranks.

    A rank sends one message in a unit of time, and goes on when one that it waits for has come. So the latest
    clock is the number of messages in the longest sequence.

    Attributes:
        clocks: the time of each rank.
        sent: the bytes that each rank has sent.
        peers: the ranks to which each has sent.
    """

    def __init__(self, ranks: int) -> None:
        self.clocks, self.sent = [0] * ranks, [0] * ranks
        self.peers: list[set[int]] = [set() for _ in range(ranks)]
        self._ways: defaultdict[Any, queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)
        self._lock = threading.Lock()

    def way(self, source: int, to: int, tag: int) -> queue.SimpleQueue[Any]:
        with self._lock:
            return self._ways[source, to, tag]


class ClockedTransport:
    """A `Transport` of one rank."""

    def __init__(self, network: Network, ranks: Sequence[int], rank: int) -> None:
        self._network, self._ranks, self._own = network, list(ranks), rank
        self.rank, self.world_size = self._ranks.index(rank), len(self._ranks)

    def send(self, flat: torch.Tensor, to: int, tag: int = 0) -> _Sent:
        network, other = self._network, self._ranks[to]
        network.clocks[self._own] += 1
        network.sent[self._own] += flat.nbytes
        network.peers[self._own].add(other)
        network.way(self._own, other, tag).put((flat.clone(), network.clocks[self._own]))
        return _Sent()

    def receive(self, flat: torch.Tensor, source: int, tag: int = 0) -> _Expected:
        way = self._network.way(self._ranks[source], self._own, tag)
        return _Expected(flat, way, self._network.clocks, self._own)


def at_once(ranks: int, work: Callable[[int], None]) -> None:
    """Run `work(rank)` on so many threads.

    Raises:
        BaseException: the first that a rank has raised.
    """
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class CountingStore(dist.Store):
    """A store of one rank that counts its requests.

    Attributes:
        requests: number of requests.
        bytes: bytes of values, written and read.
    """

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self._inner: Any = inner
        self.requests = self.bytes = 0

    def _count(self, value: bytes | str = b"") -> None:
        self.requests += 1
        self.bytes += len(value)

    def set(self, key: str, value: Any) -> None:
        self._count(value)
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        value = self._inner.get(key)
        self._count(value)
        return value

    def wait(self, keys: Any, timeout: Any = None) -> None:
        self._count()
        self._inner.wait(keys) if timeout is None else self._inner.wait(keys, timeout)

    def has_extended_api(self) -> bool:
        return False

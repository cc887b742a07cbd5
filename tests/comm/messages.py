"""Ranks that are threads of this process, and messages among them: what algorithms are tried on."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

PATIENCE_S = 20.0


class Message:
    """One end's side of a message."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        self.done = threading.Event()

    def wait(self) -> None:
        assert self.done.wait(PATIENCE_S), "a message was never met by its other end"


class Post:
    """Where messages meet: bytes move when both ends are there, as over a socket with a full buffer.

    So a tensor that is changed before its message has been waited for arrives changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: defaultdict[Any, list[Message]] = defaultdict(list)
        self._expected: defaultdict[Any, list[Message]] = defaultdict(list)
        self.bytes = defaultdict(int)

    def put(self, way: Any, flat: torch.Tensor, *, sending: bool) -> Message:
        message = Message(flat)
        with self._lock:
            (self._sent if sending else self._expected)[way].append(message)
            while self._sent[way] and self._expected[way]:
                sent, expected = self._sent[way].pop(0), self._expected[way].pop(0)
                assert sent.flat.shape == expected.flat.shape
                assert sent.flat.is_contiguous()
                expected.flat.copy_(sent.flat)
                self.bytes[way[:2]] += sent.flat.nbytes
                sent.done.set()
                expected.done.set()
        return message

    @property
    def idle(self) -> bool:
        """Every message has been met."""
        return not any([*self._sent.values(), *self._expected.values()])


class ThreadTransport:
    """A `Transport` among ranks that are threads."""

    def __init__(self, post: Post, ranks: Sequence[int], rank: int) -> None:
        self._post = post
        self._ranks = list(ranks)
        self.rank = self._ranks.index(rank)
        self.world_size = len(self._ranks)

    def send(self, flat: torch.Tensor, to: int, tag: int = 0) -> Message:
        way = (self._ranks[self.rank], self._ranks[to], tag)
        return self._post.put(way, flat, sending=True)

    def receive(self, flat: torch.Tensor, source: int, tag: int = 0) -> Message:
        way = (self._ranks[source], self._ranks[self.rank], tag)
        return self._post.put(way, flat, sending=False)


def on_threads(count: int, fn: Callable[[int], Any]) -> list[Any]:
    """`fn(rank)` on so many threads at once."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = fn(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    if errors:
        raise errors[0]
    return results


class ThreadHost:
    """The ranks of one host, as `SharedMemory` joins them, on threads."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_S)
        self._shown: list[Any] = [None] * ranks

    def of(self, rank: int) -> ThreadRank:
        return ThreadRank(self, rank)

    def exchange(self, rank: int, shown: Any) -> list[Any]:
        """What every rank shows at its call."""
        self._shown[rank] = shown
        self._barrier.wait()
        every = list(self._shown)
        self._barrier.wait()
        return every


class ThreadRank:
    """One rank's collectives within a `ThreadHost`."""

    def __init__(self, host: ThreadHost, rank: int) -> None:
        self._host = host
        self._rank = rank

    def all_reduce(self, flat: torch.Tensor) -> None:
        flat.copy_(torch.stack(self._host.exchange(self._rank, flat.clone())).sum(0))

    def reduce_scatter(self, out: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        every = self._host.exchange(self._rank, [piece.clone() for piece in pieces])
        out.copy_(torch.stack([each[self._rank] for each in every]).sum(0))

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> None:
        out.copy_(torch.stack(self._host.exchange(self._rank, flat.clone())))

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        flat.copy_(self._host.exchange(self._rank, flat.clone())[source])

    def set_timeout(self, timeout: timedelta) -> None:
        raise AssertionError("no test sets it")

    def close(self) -> None:
        """There is nothing to let go of."""

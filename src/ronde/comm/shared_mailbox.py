"""Messages between two ranks of one host, through memory that they share.

A sender copies the whole message into memory of its own and posts a header in its ring for the receiver, so a
send never waits for its receiver, and no order of sends and receives that would end otherwise hangs. The
header goes first: a receiver that is already waiting copies while the sender writes.

A ring that is full, because its receiver looks at no messages, sends the next headers later: when the sender
waits, sends or receives. Receives are matched with messages in the order of both, for each sender and tag.
Like the collectives, this relies on stores becoming visible in program order.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import torch

from ronde.comm.message_memory import FILLED, TAKEN, MemoryBlock, MessageMemory, PeerMemory
from ronde.comm.split import round_up
from ronde.comm.waiting import Counters, Waiting
from ronde.errors import LaunchError, PeerLost

__all__ = ["Mailbox", "Receive", "Send", "slots"]

# Headers that wait for one receiver; of many ranks fewer, so that all rings together grow with their number.
_MOST_SLOTS, _ALL_SLOTS = 64, 2048
_SLOT_WORDS = 8
_LINE_WORDS = 8
_PAGE = 4096
# Bytes after which a sender updates the count for the receiver.
_STEP = 512 << 10
# Time that a leaving rank waits for peers that have not read its messages.
_LINGER_S = 5.0


@dataclasses.dataclass(eq=False, slots=True)
class Send:
    """A message under way; made by `Mailbox.send`.

    Attributes:
        posted: whether its header is in the receiver's ring; its contents are copied when `send` returns.
    """

    to: int
    header: tuple[int, ...]
    block: MemoryBlock | None
    posted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Message:
    source: int
    tag: int
    nbytes: int
    block: MemoryBlock | None


@dataclasses.dataclass(eq=False, slots=True)
class Receive:
    """A place for a message; made by `Mailbox.receive`.

    Attributes:
        source: the sending rank; None until a message from any rank has arrived.
        done: whether the message is in `flat`.
        failure: the reason for which it cannot be received, or None.
    """

    source: int | None
    tag: int
    flat: torch.Tensor
    message: _Message | None = None
    copied: int = 0
    done: bool = False
    failure: str | None = None


class Mailbox:
    """Messages between one rank and each rank of the host, itself included.

    Args:
        rank: the number of this rank on this host.
        memory: `nbytes(ranks)` bytes of each rank, shared by all, zero at first.
        pids: process number of each rank.
        waiting: the wait for peers, among the same ranks.
    """

    def __init__(
        self, rank: int, memory: Sequence[memoryview], pids: Sequence[int], waiting: Waiting
    ) -> None:
        ranks = len(memory)
        self._rank = rank
        self._ranks = ranks
        self._waiting = waiting
        self._counters = Counters(memory, rank, _words(ranks), waiting.bell)
        rings = [part[_words(ranks) * 8 :].cast("q") for part in memory]
        self._slots = slots(ranks)
        length = self._slots * _SLOT_WORDS
        self._outgoing = [rings[rank][to * length : (to + 1) * length] for to in range(ranks)]
        self._incoming = [ring[rank * length : (rank + 1) * length] for ring in rings]
        self._own = MessageMemory()
        self._theirs = [PeerMemory(pid) for pid in pids]
        self._posted = [0] * ranks
        self._read = [0] * ranks
        self._queues: list[collections.deque[Send]] = [collections.deque() for _ in range(ranks)]
        self._receives: list[Receive] = []
        self._messages: list[_Message] = []

    @staticmethod
    def nbytes(ranks: int) -> int:
        """Return the bytes of memory that each rank must provide."""
        return round_up((_words(ranks) + ranks * slots(ranks) * _SLOT_WORDS) * 8, _PAGE)

    def send(self, flat: torch.Tensor, to: int, tag: int = 0) -> Send:
        """Send `flat`, contiguous bytes, which may be changed afterwards.

        Raises:
            LaunchError: the memory for the message does not suffice.
        """
        block = None
        address = (0, 0, 0, 0, 0)
        if flat.numel():
            try:
                block = self._own.take(flat.numel())
            except OSError as error:
                size = flat.numel() / 2**20
                raise LaunchError(
                    f"no memory for a message of {size:.1f} MiB to another rank: {error.strerror} [R201]"
                ) from error
            address = block.address
        send = Send(to, (tag, flat.numel(), *address), block)
        self._queues[to].append(send)
        self._flush()
        if block is not None:
            for begin in range(0, flat.numel(), _STEP):
                piece = flat[begin : begin + _STEP]
                block.payload[begin : begin + piece.numel()].copy_(piece)
                block.words[FILLED] = begin + piece.numel()
                self._waiting.bell.ring()
        return send

    def receive(self, flat: torch.Tensor, source: int | None, tag: int = 0) -> Receive:
        """Receive a message into `flat`, contiguous bytes.

        `done` of the result is true once the message is there; `wait` waits for it.
        """
        receive = Receive(source, tag, flat)
        message = next((each for each in self._messages if _fits(receive, each)), None)
        if message is None:
            self._receives.append(receive)
        else:
            self._messages.remove(message)
            self._give(receive, message)
        self.progress()
        return receive

    def progress(self) -> None:
        """Send and receive as far as possible without waiting."""
        self._flush()
        for source in range(self._ranks):
            while self._counters.all[source][self._rank * _LINE_WORDS] > self._read[source]:
                self._take_header(source)
        for receive in [each for each in self._receives if each.message is not None]:
            self._copy(receive)

    def wait(self, item: Send | Receive) -> None:
        """Wait until this receive is done, or this send no longer needs this rank.

        Raises:
            PeerLost: the peer has died, is stopped or did not arrive in time.
            LaunchError: the message cannot be received.
        """
        if isinstance(item, Send):
            while not item.posted:
                self._waiting.until_true(self._news, (item.to,))
                self.progress()
            return
        while not item.done:
            self.progress()
            if item.done:
                break
            message = item.message
            if message is None:
                sources = self._others() if item.source is None else (item.source,)
                self._waiting.until_true(self._news, sources)
            elif message.block is not None:
                self._waiting.until_one(message.block.words, FILLED, item.copied + 1, message.source)
        if item.failure is not None:
            raise LaunchError(item.failure)

    def close(self) -> None:
        """Wait until peers have read their messages, then release all memory.

        The wait is a few seconds at most.
        """
        self._counters.tell(self._closed, 1)
        unread = [to for to in range(self._ranks) if to != self._rank and not self._is_read(to)]
        patience, self._waiting.timeout = self._waiting.timeout, _LINGER_S
        try:
            self._waiting.until_true(lambda: self._leave(unread), unread)
        except PeerLost:
            pass  # no peer is left to read
        finally:
            self._waiting.timeout = patience
        self._own.close()
        self._theirs.clear()

    def _leave(self, unread: Sequence[int]) -> bool:
        self._flush()
        return all(self._is_read(to) for to in unread)

    def _is_read(self, to: int) -> bool:
        words = self._counters.all[to]
        return bool(words[self._closed]) or (
            not self._queues[to] and words[self._read_word(self._rank)] >= self._posted[to]
        )

    @property
    def _closed(self) -> int:
        return 2 * self._ranks * _LINE_WORDS

    def _read_word(self, source: int) -> int:
        return (self._ranks + source) * _LINE_WORDS

    def _others(self) -> list[int]:
        return [each for each in range(self._ranks) if each != self._rank]

    def _has_room(self, to: int) -> bool:
        return self._posted[to] - self._counters.all[to][self._read_word(self._rank)] < self._slots

    def _news(self) -> bool:
        """Return whether `progress` would send or take a header."""
        word = self._rank * _LINE_WORDS
        return any(
            words[word] > self._read[each] or (self._queues[each] and self._has_room(each))
            for each, words in enumerate(self._counters.all)
        )

    def _flush(self) -> None:
        for to, queue in enumerate(self._queues):
            while queue and self._has_room(to):
                send = queue.popleft()
                begin = self._posted[to] % self._slots * _SLOT_WORDS
                for place, value in enumerate(send.header):
                    self._outgoing[to][begin + place] = value
                self._posted[to] += 1
                self._counters.tell(to * _LINE_WORDS, self._posted[to])
                send.posted = True

    def _take_header(self, source: int) -> None:
        begin = self._read[source] % self._slots * _SLOT_WORDS
        tag, nbytes, *address = self._incoming[source][begin : begin + 7].tolist()
        block = None
        if nbytes:
            number, descriptor, inode, size, offset = address
            try:
                block = self._theirs[source].block((number, descriptor, inode, size, offset), nbytes)
            except OSError as error:
                whom = self._waiting.name(source)
                raise PeerLost(
                    f"{whom} has died, or its memory cannot be opened: its message cannot be read "
                    f"({error.strerror}) [R201]"
                ) from error
        self._read[source] += 1
        self._counters.tell(self._read_word(source), self._read[source])
        message = _Message(source, tag, nbytes, block)
        receive = next(
            (each for each in self._receives if each.message is None and _fits(each, message)), None
        )
        if receive is None:
            self._messages.append(message)
        else:
            self._receives.remove(receive)
            self._give(receive, message)

    def _give(self, receive: Receive, message: _Message) -> None:
        receive.source = message.source
        receive.message = message
        if message.nbytes != receive.flat.numel():
            receive.failure = (
                f"a message of {message.nbytes} bytes has arrived for a tensor of {receive.flat.numel()} "
                "bytes; receive into a tensor of the size that is sent [R201]"
            )
        self._receives.append(receive)
        self._copy(receive)

    def _copy(self, receive: Receive) -> None:
        """Copy as much as the sender has written."""
        message = receive.message
        assert message is not None
        block = message.block
        if block is not None and receive.failure is None:
            filled = block.words[FILLED]
            if filled > receive.copied:
                receive.flat[receive.copied : filled].copy_(block.payload[receive.copied : filled])
                receive.copied = filled
        if receive.failure is not None or receive.copied == message.nbytes:
            receive.done = True
            self._receives.remove(receive)
            if block is not None:
                block.words[TAKEN] = 1


def _fits(receive: Receive, message: _Message) -> bool:
    return receive.tag == message.tag and receive.source in (None, message.source)


def slots(ranks: int) -> int:
    """Return the number of headers that can wait for one receiver of `ranks`."""
    return max(4, min(_MOST_SLOTS, _ALL_SLOTS // ranks))


def _words(ranks: int) -> int:
    """Return the number of counter words of a rank.

    For each peer there are counts of posted and read headers, then a flag for leaving.
    """
    return (2 * ranks + 1) * _LINE_WORDS

"""Collectives among the ranks of one host, through memory that they share.

Each rank owns one part of the memory, which only it writes: a page of counters and two pairs of areas. To
publish an area a rank writes it and counts up `_POSTED`; every rank publishes the same areas in the same
order, so one counter gives the progress of a rank, and an area may be written again once all ranks have
published something later, which they do when they have read it. Areas come in pairs, so that a chunk costs
only one wait for the peers.

Tensors of any size pass through in chunks that fit the cache. Sums are taken in one fixed order of
ranks for each element: all ranks hold the same bits. This relies on stores becoming visible in
program order, as they do on x86-64.
"""

from __future__ import annotations

import functools
import itertools
import mmap
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from ronde.comm.all_gather import copy_in, copy_out, messages
from ronde.comm.bell import Bell
from ronde.comm.lane import PendingCollective
from ronde.comm.once_per_host import OncePerHost, share_once
from ronde.comm.reductions import REDUCTIONS, Reduction, reduce_into
from ronde.comm.shared_mailbox import Mailbox
from ronde.comm.shared_segment import share
from ronde.comm.split import equal_parts
from ronde.comm.waiting import Counters, Waiting
from ronde.patching.torch_internals import foreach_copy_

__all__ = ["SharedMemory", "chunk_bytes"]

_PAGE = 4096
_POSTED = 0
# Whether the rank has closed the group; in a cache line of its own.
_LEFT = 8
# Where the bell begins, in bytes.
_BELL = 1024
# Tensors up to this size are read whole by every rank: one wait in place of two.
_SMALL = 32 << 10
_LEAST_CHUNK, _MOST_CHUNK = 1 << 20, 4 << 20
# Bytes of the chunks of all ranks of a host together, which must not grow with the square of their number.
_ALL_CHUNKS = 32 << 20
_MOST_VIEWS = 256
# The pair of areas for chunks; a pair for small tensors comes before it.
_LARGE = (2, 3)


def chunk_bytes(ranks: int) -> int:
    """Return the bytes of each rank's chunk, on a host of `ranks` ranks."""
    most = min(_MOST_CHUNK, _ALL_CHUNKS // ranks // _PAGE * _PAGE)
    return max(_PAGE, min(most, max(_LEAST_CHUNK, ranks * (_LEAST_CHUNK // 2))))


def _has_left(counters: Counters, peer: int) -> bool:
    return bool(counters.all[peer][_LEFT])


class SharedMemory:
    """Collectives among `ranks` processes of one host.

    Every method is called by all, in the same order. Tensors are on the CPU and contiguous. Results are
    written to the tensors that are given.

    Args:
        rank, ranks: this process among those of the host.
        exchange: function that gathers three integers from every process of the host, in order.
        timeout: the time to wait for a peer.
        first_rank: number of the host's first rank among all ranks, for messages.

    Attributes:
        mailbox: messages between two of the ranks.

    Raises:
        LaunchError: memory cannot be shared; raised on all ranks.
        PeerLost: a peer has died, is stopped or did not arrive in time; raised by every method.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        exchange: Callable[[tuple[int, int, int]], Sequence[tuple[int, int, int]]],
        *,
        timeout: timedelta,
        first_rank: int = 0,
    ) -> None:
        self.rank = rank
        self.ranks = ranks
        self._chunk = chunk_bytes(ranks)
        self._share = self._chunk // ranks // 64 * 64
        mailbox = Mailbox.nbytes(ranks)
        self._maps, pids = share(_PAGE + mailbox + 2 * (_SMALL + self._chunk), rank, exchange)
        bell = Bell(rank, self._maps, _BELL)
        self._counters = Counters([memoryview(part) for part in self._maps], rank, _LEFT + 1, bell)
        self.waiting = Waiting(
            rank,
            pids,
            numbers=range(first_rank, first_rank + ranks),
            bell=bell,
            timeout=timeout.total_seconds(),
            left=functools.partial(_has_left, self._counters),
        )
        letters = [memoryview(part)[_PAGE : _PAGE + mailbox] for part in self._maps]
        self.mailbox = Mailbox(rank, letters, pids, self.waiting)
        memory = [torch.frombuffer(part, dtype=torch.uint8) for part in self._maps]
        self._areas: list[list[torch.Tensor]] = []
        begin = _PAGE + mailbox
        for size in (_SMALL, _SMALL, self._chunk, self._chunk):
            self._areas.append([part[begin : begin + size] for part in memory])
            begin += size
        self._free = [0] * len(self._areas)
        self._posted = 0
        self._turns = [0, 0]
        self._started: PendingCollective | None = None
        self._views: dict[tuple[int, torch.dtype, int], list[torch.Tensor]] = {}

    def allocate(self, nbytes: int) -> list[mmap.mmap]:
        """Allocate memory of `nbytes` on every rank, shared by all.

        Raises:
            LaunchError: the memory does not suffice; raised on all ranks.
        """
        return share(nbytes, self.rank, self._exchange)[0]

    def share_once(self, nbytes: int, own: Sequence[tuple[int, int]]) -> OncePerHost | None:
        """Call `ronde.comm.once_per_host.share_once` among these ranks."""
        return share_once(nbytes, own, self.rank, self._exchange)

    def _exchange(self, mine: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        out = torch.empty(self.ranks, 3, dtype=torch.int64, device="cpu")
        self.all_gather(out, torch.tensor(mine, device="cpu"))
        return [(first, second, third) for first, second, third in out.tolist()]

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        self._post()
        self.waiting.until(self._counters, _POSTED, self._posted)

    def all_reduce(self, flat: torch.Tensor, op: str = "sum") -> None:
        """Reduce `flat` [n] over ranks in place."""
        reduction = REDUCTIONS[op]
        if flat.nbytes <= _SMALL:
            parts = self._gathered(flat)
            reduce_into(flat, parts, reduction)
            return
        width = self._chunk // flat.element_size()
        for begin in range(0, flat.numel(), width):
            self._reduce_chunk(flat[begin : begin + width], reduction)

    def start_all_reduce(self, flat: torch.Tensor) -> PendingCollective | None:
        """Start to sum `flat` [n] over ranks in place; small tensors complete later.

        Returns:
            handle that completes the sum; the next collective does so at the latest. None if it is
                complete already.
        """
        if flat.nbytes > _SMALL:
            self.all_reduce(flat)
            return None
        parts = self._put(flat)
        return self._later(lambda: reduce_into(flat, parts, REDUCTIONS["sum"]))

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> None:
        """Put `flat` [n] of every rank into `out` [ranks, n]."""
        self.all_gather_into(out.unbind(0), flat)

    def start_all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> PendingCollective | None:
        """Start `all_gather`; small tensors complete later, as in `start_all_reduce`."""
        if flat.nbytes > _SMALL:
            self.all_gather(out, flat)
            return None
        parts = self._put(flat)
        rows = list(out.unbind(0))
        return self._later(lambda: foreach_copy_(rows, parts))

    def all_gather_into(self, outs: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
        """Put `flat` [n] of rank r into `outs[r]`, for every rank."""
        if flat.nbytes <= _SMALL:
            for out, part in zip(outs, self._gathered(flat), strict=True):
                out.copy_(part)
            return
        width = self._chunk // flat.element_size()
        for begin in range(0, flat.numel(), width):
            parts = self._gathered(flat[begin : begin + width])
            for out, part in zip(outs, parts, strict=True):
                out[begin : begin + width].copy_(part)

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        """Put `flat` [n] of rank `source` into every rank's `flat`."""
        for piece in self._chunks(flat):
            area = self._take(1 if piece.nbytes > _SMALL else 0)
            part = self._view(area, piece.dtype, piece.numel())[source]
            if self.rank == source:
                part.copy_(piece)
            self._publish(area)
            if self.rank != source:
                piece.copy_(part)

    def complete(self, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        """All-gather the bytes `parts[rank]` in place, into all others' tensors."""
        for message in itertools.zip_longest(*(messages(each, self._chunk) for each in parts), fillvalue=()):
            area = self._take(1)
            copy_in(self._areas[area][self.rank], message[self.rank])
            self._publish(area)
            copy_out(self._areas[area], message, self.rank)

    def reduce_scatter(self, out: torch.Tensor, pieces: Sequence[torch.Tensor], op: str = "sum") -> None:
        """Reduce `pieces[rank]` of all ranks into `out` of each rank.

        `out` has the same length; pieces may differ in length.
        """
        self.reduce_scatter_lists(out, [[piece] for piece in pieces], op)

    def reduce_scatter_lists(
        self, out: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], op: str = "sum"
    ) -> None:
        """Reduce-scatter lists of flat tensors, each list taken end to end."""
        reduction = REDUCTIONS[op]
        width = self._share // out.element_size()
        begin = 0
        for pieces in itertools.zip_longest(*(messages(each, width) for each in lists), fillvalue=()):
            area = self._take(1)
            for reader, parts in enumerate(pieces):
                if reader != self.rank:
                    copy_in(self._place(area, self.rank, out.dtype, reader), parts)
            self._publish(area)
            rows = [
                self._place(area, each, out.dtype, self.rank)
                for each in range(self.ranks)
                if each != self.rank
            ]
            at = 0
            for part in pieces[self.rank]:
                end = at + part.numel()
                reduce_into(out[begin + at : begin + end], [part, *(row[at:end] for row in rows)], reduction)
                at = end
            begin += at

    def all_to_all(self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> None:
        """Send `pieces[r]` to rank r, and receive rank r's into `outs[r]`.

        Sizes may differ, also be zero. Rank r's piece for this rank must be as long as `outs[r]`.
        """
        longest = max(value.numel() for value in (*outs, *pieces))
        size = torch.tensor([longest], device="cpu")
        self.all_reduce(size, "max")
        width = self._share // pieces[0].element_size()
        for begin in range(0, int(size), width):
            area = self._take(1)
            self._spread(area, [piece[begin : begin + width] for piece in pieces])
            for each, out in enumerate(outs):
                target = out[begin : begin + width]
                if each == self.rank:
                    target.copy_(pieces[each][begin : begin + width])
                elif target.numel():
                    target.copy_(self._piece(area, each, target, self.rank))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time to wait for a peer."""
        self.waiting.timeout = timeout.total_seconds()

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        if self._maps:
            self._counters.tell(_LEFT, 1)
            self.mailbox.close()
        self.waiting.close()
        self._areas.clear()
        self._views.clear()
        self._maps.clear()

    def _chunks(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        return flat.split(self._chunk // flat.element_size()) if flat.numel() else ()

    def _gathered(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Publish `flat` and return every rank's, valid until the next publication."""
        parts = self._put(flat)
        self.waiting.until(self._counters, _POSTED, self._posted)
        return parts

    def _put(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Write `flat` for all to read, and return views of every rank's area.

        They are valid once the peers have posted.
        """
        area = self._take(0 if flat.nbytes <= _SMALL else 1)
        parts = self._view(area, flat.dtype, flat.numel())
        parts[self.rank].copy_(flat)
        self._show(area)
        return parts

    def _reduce_chunk(self, chunk: torch.Tensor, reduction: Reduction) -> None:
        """Reduce one part of the chunk on every rank, and exchange the results."""
        bounds = equal_parts(chunk.numel(), self.ranks)
        pieces = [chunk[begin:end] for begin, end in bounds]
        staged, results = _LARGE
        self._wait_for(staged)
        whole = self._view(staged, chunk.dtype, chunk.numel())
        for rank, (begin, end) in enumerate(bounds):
            if rank != self.rank:
                whole[self.rank][begin:end].copy_(pieces[rank])
        self._publish(staged)
        mine = pieces[self.rank]
        self._wait_for(results)
        begin, end = bounds[self.rank]
        others = [part[begin:end] for rank, part in enumerate(whole) if rank != self.rank]
        reduce_into(mine, [mine, *others], reduction)
        self._view(results, chunk.dtype, mine.numel())[self.rank].copy_(mine)
        self._publish(results)
        for rank, piece in enumerate(pieces):
            if rank != self.rank:
                piece.copy_(self._view(results, chunk.dtype, piece.numel())[rank])

    def _spread(self, area: int, pieces: Sequence[torch.Tensor]) -> None:
        """Write each other rank's piece into this rank's area, and publish the area."""
        for rank, piece in enumerate(pieces):
            if rank != self.rank and piece.numel():
                self._piece(area, self.rank, piece, rank).copy_(piece)
        self._publish(area)

    def _piece(self, area: int, owner: int, like: torch.Tensor, reader: int) -> torch.Tensor:
        """Return the part of `owner`'s area for `reader`, as long as `like`."""
        return self._place(area, owner, like.dtype, reader)[: like.numel()]

    def _place(self, area: int, owner: int, dtype: torch.dtype, reader: int) -> torch.Tensor:
        """Return the whole slot of `reader` in the owner's area."""
        begin = reader * self._share
        return self._areas[area][owner][begin : begin + self._share].view(dtype)

    def _take(self, pair: int) -> int:
        """Return the next area of a pair (0: small, 1: large), free for writing."""
        area = 2 * pair + self._turns[pair]
        self._turns[pair] ^= 1
        self._wait_for(area)
        return area

    def _wait_for(self, area: int) -> None:
        """Wait until every rank has read the former content of this area."""
        if self._free[area] > self._posted:
            self._post()
        self.waiting.until(self._counters, _POSTED, self._free[area])

    def _publish(self, area: int) -> None:
        """Mark the area as readable, and wait until all ranks have done so."""
        self._show(area)
        self.waiting.until(self._counters, _POSTED, self._posted)

    def _show(self, area: int) -> None:
        self._post()
        self._free[area] = self._posted + 1

    def _later(self, take: Callable[[], object]) -> PendingCollective:
        """Defer reading an area until all have posted, or until the next post."""
        number = self._posted

        def complete() -> None:
            self.waiting.until(self._counters, _POSTED, number)
            # The target may have been made in inference mode, which the script may have left.
            with torch.inference_mode():
                take()

        self._started = PendingCollective(complete)
        return self._started

    def _post(self) -> None:
        """Count up `_POSTED`, after reading areas that peers may now overwrite."""
        started, self._started = self._started, None
        if started is not None:
            started.wait()
        self._posted += 1
        self._counters.tell(_POSTED, self._posted)

    def _view(self, area: int, dtype: torch.dtype, numel: int) -> list[torch.Tensor]:
        """Return the first `numel` elements of every rank's area."""
        key = (area, dtype, numel)
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            nbytes = numel * dtype.itemsize
            # tensors made in inference mode could not be written outside of it
            with torch.inference_mode(False):
                views = [part[:nbytes].view(dtype) for part in self._areas[area]]
            self._views[key] = views
        return views

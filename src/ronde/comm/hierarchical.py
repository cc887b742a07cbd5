"""Two-level all-reduce: shared memory within each host, the network between hosts.

    within each host    every rank gets the host's sum of one part         shared memory
    across hosts        ranks with the same part sum it over the hosts     ring; trees where parts are small
    within each host    every rank gets the other parts                    shared memory

Each of H hosts sends 2 (H - 1) / H times the tensor, however many ranks it has; one ring over all W ranks
makes that 2 (W - 1) / W at best. A tensor passes in chunks: while one is summed across hosts, the next is
summed within. There are as many parts as the host with the fewest ranks has ranks; on a host that has more,
the others take part within it only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from ronde.comm import ring, tree
from ronde.comm.lane import Lane, Task
from ronde.comm.split import round_up
from ronde.comm.transport import Transport

__all__ = ["Hierarchical", "Within", "sum_across"]

CHUNK_BYTES = 4 << 20
# Parts up to so many bytes for each host, of at least four, use the trees: a ring would cut them into
# messages that are shorter still, and as many in sequence as hosts; of trees it is the logarithm.
_SMALL_PER_HOST = 16 << 10
# Number of chunks that are summed across hosts while the next one is summed within.
_AHEAD = 2


class Within(Protocol):
    """Collectives among the ranks of one host (`SharedMemory`)."""

    def all_reduce(self, flat: torch.Tensor) -> Any:
        """Sum `flat` [n] in place."""
        ...

    def reduce_scatter(self, out: torch.Tensor, pieces: Sequence[torch.Tensor]) -> Any:
        """Sum `pieces[rank]` of all ranks into `out` [n] of each."""
        ...

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        """Put `flat` [n] of every rank into `out` [ranks, n]."""
        ...

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        """Put `flat` [n] of rank `source` into every rank's."""
        ...

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time to wait for a peer."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...


class Hierarchical:
    """All-reduce over all ranks of several hosts.

    Args:
        within: collectives among the ranks of this host; None for a single rank.
        across: transport among the ranks with this local rank, one of each host; None where some host lacks
            it.
        local_rank: the number of this rank on its host.
        sizes: the number of ranks of each host.
        host: the number of this host.
    """

    def __init__(
        self,
        within: Within | None,
        across: Transport | None,
        *,
        local_rank: int,
        sizes: Sequence[int],
        host: int,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._within = within
        self._across = across
        self._local_rank = local_rank
        self._parts = min(sizes)
        self._even = sizes[host] == self._parts
        self._chunk_bytes = chunk_bytes
        self._lane = Lane("ronde-across-hosts")

    def all_reduce(self, flat: torch.Tensor) -> None:
        """Sum `flat` [n] over all ranks in place."""
        under_way: deque[tuple[torch.Tensor, torch.Tensor, Task | None]] = deque()
        for chunk in self._chunks(flat):
            # All parts of a chunk have one size.
            whole = chunk
            if chunk.numel() % self._parts:
                whole = chunk.new_zeros(round_up(chunk.numel(), self._parts))
                whole[: chunk.numel()] = chunk
            under_way.append((chunk, whole, self._begin(whole)))
            if len(under_way) > _AHEAD:
                self._end(*under_way.popleft())
        while under_way:
            self._end(*under_way.popleft())

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that ranks of this host wait for each other. Messages have their group's limit."""
        if self._within is not None:
            self._within.set_timeout(timeout)

    def close(self) -> None:
        """End the thread and release the host's memory."""
        self._lane.close()
        if self._within is not None:
            self._within.close()

    def _chunks(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        width = max(1, self._chunk_bytes // flat.element_size() // self._parts) * self._parts
        return flat.split(width) if flat.numel() else ()

    def _begin(self, whole: torch.Tensor) -> Task | None:
        """Sum one chunk within the host, and start summing this rank's part across hosts."""
        within, across = self._within, self._across
        parts = whole.view(self._parts, -1).unbind(0)
        if within is not None and self._even:
            within.reduce_scatter(parts[self._local_rank], parts)
        elif within is not None:
            within.all_reduce(whole)
        if across is None:
            return None
        mine = parts[self._local_rank]
        return self._lane.start(lambda: sum_across(across, mine))

    def _end(self, chunk: torch.Tensor, whole: torch.Tensor, task: Task | None) -> None:
        """Wait for this rank's part of a chunk, and exchange parts within the host."""
        if task is not None:
            task.wait()
        within = self._within
        rows = whole.view(self._parts, -1)
        if within is not None and self._even:
            within.all_gather(rows, rows[self._local_rank])
        elif within is not None:
            for source, row in enumerate(rows.unbind(0)):
                within.broadcast(row, source)
        if whole is not chunk:
            chunk.copy_(whole[: chunk.numel()])


def sum_across(transport: Transport, flat: torch.Tensor) -> None:
    """Sum over one rank of each host, by the faster algorithm for this size.

    It depends on the size alone, so all ranks choose alike.
    """
    if transport.world_size > 2 and flat.nbytes <= _SMALL_PER_HOST * max(4, transport.world_size):
        tree.all_reduce(transport, flat)
    else:
        ring.all_reduce(transport, flat)

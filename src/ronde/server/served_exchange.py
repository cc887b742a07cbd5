"""Tables whose rows are on parameter servers: ids go to their servers, rows come back, gradients are pushed.

A push is not waited for: what is asked next says which push it must contain, so the server applies it while
this rank goes on. What a server refuses is raised by what is asked next, or at the end.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from typing import Any, NamedTuple

import numpy as np

from ronde.comm.process_group import Comm
from ronde.server.exchange import summed
from ronde.server.table.combine import unique
from ronde.server.table.hashing import BUCKETS, buckets_of
from ronde.server.table.spelling import write_config
from ronde.server.table.state import State, divide, merge
from ronde.server.table.table import Table
from ronde.server.transport.client import Client, Request
from ronde.server.transport.wire import Message, Operation

__all__ = ["Served"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(eq=False, slots=True)
class _Remote:
    """A table, as servers know it.

    Attributes:
        number: tables are numbered as they are made, which is in the same order on all ranks.
        clocks: for each server, by which of this rank's changes look-ups must be preceded.
    """

    number: int
    clocks: list[int]


class _Route(NamedTuple):
    """Ids by server.

    Attributes:
        order: places of the ids, those of the first server first; int64 [n].
        bounds: where each server's part of `order` begins, and the end.
    """

    order: Array
    bounds: list[int]


class Served:
    """An `Exchange` of ranks that hold no rows themselves.

    Args:
        client: the connections to the servers.
        comm: the ranks, each of which pushes at each step, for a step is made of all of them.
    """

    def __init__(self, client: Client, comm: Comm) -> None:
        self._client, self._comm = client, comm
        self._numbers = itertools.count()
        self._remotes: weakref.WeakKeyDictionary[Table, _Remote] = weakref.WeakKeyDictionary()
        # Requests that were not waited for, with the memory that they refer to.
        self._pushed: list[tuple[list[Request], Array]] = []

    def compile(self, table: Table) -> None:
        table.look_up(unique(np.zeros(1, np.int64)).ids)
        self._by_server(np.zeros(1, np.int64))
        self._remote(table)

    def look_up(self, table: Table, ids: Array) -> Array:
        remote, client = self._remote(table), self._client
        distinct = unique(ids)
        route = self._by_server(distinct.ids)
        rows = self._fetch(table, remote, distinct.ids, route)
        places = np.empty(len(route.order), np.int64)
        places[route.order] = np.arange(len(route.order))
        del client
        return rows[places[distinct.inverse]]

    def update(self, table: Table, ids: Array, gradients: Array, lr: float) -> None:
        remote, client = self._remote(table), self._client
        ids, gradients, counts = summed(ids, gradients)
        route = self._by_server(ids)
        room = client.room(ids.nbytes + counts.nbytes + gradients.nbytes)
        pieces: list[Array] = []
        begin = 0
        for each in (ids, counts, gradients):
            piece = room[begin : begin + each.nbytes].view(each.dtype).reshape(each.shape)
            np.take(each, route.order, axis=0, out=piece)
            pieces.append(piece)
            begin += each.nbytes
        requests: list[Request] = []
        meta = {"table": remote.number, "lr": lr}
        for server, (first, last) in enumerate(itertools.pairwise(route.bounds)):
            some_ids, some_counts, some_gradients = (each[first:last] for each in pieces)
            arrays = [some_ids, some_gradients, some_counts]
            requests.append(client.send(server, Operation.UPDATE, dict(meta), arrays, changes=True))
        self._pushed.append((requests, room))
        remote.clocks = client.sequences

    def count(self, table: Table) -> int:
        return sum(int(each.meta["count"]) for each in self._ask(table, Operation.COUNT))

    def state(self, table: Table) -> State:
        answers = self._ask(table, Operation.ROWS)
        return merge([dict(zip(each.meta["entries"], each.arrays, strict=True)) for each in answers])

    def load(self, table: Table, state: State) -> None:
        remote, client = self._remote(table), self._client
        requests: list[Request] = []
        for server in range(client.servers):
            part = divide(state, lambda ids, server=server: self._servers_of(ids) == server)
            arrays = [np.asarray(value, order="C") for value in part.values()]
            # All ranks have the same to load; the first one's is taken.
            own = arrays if self._comm.rank == 0 else []
            meta = {"table": remote.number, "entries": list(part)}
            requests.append(client.send(server, Operation.PUT_ROWS, meta, own, changes=True))
        client.wait(requests)
        remote.clocks = client.sequences

    def settle(self) -> None:
        """Wait for pushes, and raise what a server has refused.

        Raises:
            ServerRefused: a server could not apply one.
            PeerLost: one does not answer.
        """
        pushed, self._pushed = self._pushed, []
        for requests, room in pushed:
            self._client.wait(requests)
            self._client.give_back(room)

    def _settle_answered(self) -> None:
        """As `settle`, of those that have been answered already."""
        while self._pushed and all(each.answer is not None for each in self._pushed[0][0]):
            requests, room = self._pushed.pop(0)
            self._client.wait(requests)
            self._client.give_back(room)

    def _fetch(self, table: Table, remote: _Remote, ids: Array, route: _Route) -> Array:
        """Rows of ids, in the order of the route; [n, dim]."""
        client, dim = self._client, table.config.dim
        dtype = table.dtype
        width = dim * dtype.itemsize
        room = client.room(ids.nbytes + len(ids) * width)
        asked = room[: ids.nbytes].view(np.int64)
        np.take(ids, route.order, out=asked)
        rows = room[ids.nbytes :]
        requests: list[Request] = []
        for server, (first, last) in enumerate(itertools.pairwise(route.bounds)):
            if first < last:
                meta = {"table": remote.number} | client.into(rows[first * width : last * width])
                clock = remote.clocks[server]
                request = client.send(server, Operation.LOOK_UP, meta, [asked[first:last]], clock=clock)
                requests.append(request)
        answers = client.wait(requests)
        self._settle_answered()
        found = np.empty((len(ids), dim), table.dtype)
        spans = [span for span in itertools.pairwise(route.bounds) if span[0] < span[1]]
        for (first, last), answer in zip(spans, answers, strict=True):
            found[first:last] = answer.arrays[0]
        client.give_back(room)
        return found

    def _ask(self, table: Table, operation: Operation) -> list[Message]:
        """Ask all servers the same, of all that has been pushed."""
        self.settle()
        remote, client = self._remote(table), self._client
        meta = {"table": remote.number}
        clocks = client.sequences
        return client.wait(
            [client.send(each, operation, dict(meta), clock=clocks[each]) for each in range(client.servers)]
        )

    def _remote(self, table: Table) -> _Remote:
        remote = self._remotes.get(table)
        if remote is None:
            client, number = self._client, next(self._numbers)
            meta = {"table": number, "config": write_config(table.config)}
            client.wait(
                [
                    client.send(each, Operation.MAKE_TABLE, dict(meta), changes=True)
                    for each in range(client.servers)
                ]
            )
            remote = self._remotes[table] = _Remote(number, client.sequences)
        return remote

    def _servers_of(self, ids: Array) -> Array:
        return buckets_of(ids) * self._client.servers // BUCKETS

    def _by_server(self, ids: Array) -> _Route:
        servers = self._servers_of(ids).astype(np.uint16)  # which numpy sorts by counting
        sizes = np.bincount(servers, minlength=self._client.servers)
        return _Route(np.argsort(servers, kind="stable"), [0, *np.cumsum(sizes).tolist()])

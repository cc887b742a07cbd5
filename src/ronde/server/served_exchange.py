"""Tables whose rows are on parameter servers: ids go to their servers, rows come back, gradients are pushed.

A push is not waited for: what is asked next says which push it must contain, so the server applies it while
this rank goes on. What a server refuses is raised by what is asked next, or at the end. With a staleness a
look-up need not contain the last pushes, and rows of ids that come often are kept for a while.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ronde.comm.process_group import Comm
from ronde.server.exchange import summed
from ronde.server.hot_rows import HotRows
from ronde.server.table.combine import unique
from ronde.server.table.half import to_half
from ronde.server.table.hashing import owners_of
from ronde.server.table.spelling import write_config
from ronde.server.table.state import State, divide, merge
from ronde.server.table.table import Table
from ronde.server.table.told import RowsOfVersion
from ronde.server.transport.client import Client, Request
from ronde.server.transport.wire import Message, Operation

__all__ = ["HOT_ROWS", "Served"]

#: Rows of a table that a worker keeps at most, where it may.
HOT_ROWS = 1 << 16

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(eq=False, slots=True)
class _Remote:
    """A table, as servers know it.

    Attributes:
        number: tables are numbered as they are made, which is in the same order on all ranks.
        clocks: the last pushes, and of each for every server the number of this rank's change.
        pushes: how many there were.
        hot: rows that need not be asked for.
    """

    number: int
    clocks: collections.deque[list[int]]
    pushes: int = 0
    hot: HotRows | None = None

    @property
    def oldest(self) -> int:
        """The push that a look-up must contain."""
        return self.pushes - len(self.clocks) + 1

    def version(self, server: int, mark: int) -> int:
        """The last push that is contained where a server has applied so many changes."""
        return self.oldest - 1 + sum(clock[server] <= mark for clock in self.clocks)

    def follows(self, clocks: list[int]) -> None:
        """From here on all look-ups come after these changes."""
        self.clocks.clear()
        self.clocks.append(clocks)
        if self.hot is not None:
            self.hot.clear()


class _Route(NamedTuple):
    """Ids by server.

    Attributes:
        order: places of the ids, those of the first server first; int64 [n].
        bounds: where each server's part of `order` begins, and the end.
    """

    order: Array
    bounds: list[int]

    def parts(self) -> list[tuple[int, int, int]]:
        """Each server, with where its part begins and ends."""
        return [(server, *span) for server, span in enumerate(itertools.pairwise(self.bounds))]


class Served:
    """An `Exchange` of ranks that hold no rows themselves.

    Args:
        client: the connections to the servers.
        comm: the ranks, each of which pushes at each step.
        rounds: servers make a step of the pushes of all ranks; else each push is one.
        staleness: how many of the last pushes a look-up may lack.
        hot_rows: of each table that are kept, where there is a staleness.
        say: is told at the end how often a row was.
    """

    def __init__(
        self,
        client: Client,
        comm: Comm,
        *,
        rounds: bool = True,
        staleness: int = 0,
        hot_rows: int = HOT_ROWS,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._client, self._comm = client, comm
        self._rounds, self._staleness, self._say = rounds, staleness, say
        self._hot_rows = hot_rows if staleness else 0
        self._found = self._asked = 0
        self._numbers = itertools.count()
        self._remotes: weakref.WeakKeyDictionary[Table, _Remote] = weakref.WeakKeyDictionary()
        # Requests that were not waited for, with the memory that they refer to.
        self._pushed: list[tuple[list[Request], Array]] = []

    def ranks(self) -> Comm | None:
        return self._comm if self._rounds else None

    def compile(self, table: Table) -> None:
        table.look_up(unique(np.zeros(1, np.int64)).ids)
        self._by_server(np.zeros(1, np.int64))
        self._remote(table)

    def look_up(self, table: Table, ids: Array) -> Array:
        remote = self._remote(table)
        hot = remote.hot
        distinct = unique(ids)
        if hot is None:
            rows, order, _ = self._fetch(table, remote, distinct.ids)
            places = np.empty(len(order), np.int64)
            places[order] = np.arange(len(order))
            return rows[places[distinct.inverse]]
        out = np.empty((len(distinct.ids), table.config.dim), table.dtype)
        missing = hot.find(distinct.ids, remote.oldest, out)
        self._asked += len(out)
        self._found += len(out) - len(missing)
        rows, order, versions = self._fetch(table, remote, distinct.ids[missing])
        missing = missing[order]
        out[missing] = rows
        hot.keep(distinct.ids[missing], rows, versions)
        return out[distinct.inverse]

    def update(self, table: Table, ids: Array, gradients: Array, lr: float) -> None:
        remote, client = self._remote(table), self._client
        ids, gradients, counts = summed(ids, gradients)
        if table.config.half_rows:
            gradients = to_half(gradients)
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
        for server, first, last in route.parts():
            some_ids, some_counts, some_gradients = (each[first:last] for each in pieces)
            arrays = [some_ids, some_gradients, some_counts]
            requests.append(client.send(server, Operation.UPDATE, dict(meta), arrays, changes=True))
        self._pushed.append((requests, room))
        remote.clocks.append(client.sequences)
        remote.pushes += 1

    def count(self, table: Table) -> int:
        return sum(int(each.meta["count"]) for each in self._ask(table, Operation.COUNT))

    def state(self, table: Table) -> State:
        answers = self._ask(table, Operation.ROWS)
        return merge([dict(zip(each.meta["entries"], each.arrays, strict=True)) for each in answers])

    def load(self, table: Table, state: State) -> None:
        remote, client = self._remote(table), self._client
        requests: list[Request] = []
        # All ranks have the same to load; the first one's is taken.
        first = self._comm.rank == 0
        for server in range(client.servers if first or self._rounds else 0):
            part = divide(state, lambda ids, server=server: self._servers_of(ids) == server)
            arrays = [np.asarray(value, order="C") for value in part.values()]
            meta = {"table": remote.number, "entries": list(part)}
            requests.append(
                client.send(server, Operation.PUT_ROWS, meta, arrays if first else [], changes=True)
            )
        client.wait(requests)
        if not self._rounds:
            self._comm.barrier()
        remote.follows(client.sequences)

    def changes(self, table: Table, version: int, follows: int) -> RowsOfVersion | None:
        answers = self._pages(table, Operation.CHANGES, {"version": version, "follows": follows})
        if not all(each.meta["known"] for each in answers):
            return None
        ids, rows, removed = (np.concatenate([each.arrays[place] for each in answers]) for place in range(3))
        return RowsOfVersion(ids=ids, rows=rows, removed=removed)

    def rows(self, table: Table) -> RowsOfVersion:
        answers = self._pages(table, Operation.EMBEDDINGS, {})
        ids, rows = (np.concatenate([each.arrays[place] for each in answers]) for place in range(2))
        return RowsOfVersion(ids=ids, rows=rows, removed=np.empty(0, np.int64))

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

    def end(self) -> None:
        """As `settle`, and say what there is to say."""
        self.settle()
        if self._asked and self._say is not None:
            share = self._found / self._asked
            self._say(
                f"tables: {share:.0%} of the rows that rank {self._comm.rank} looked up were kept from an "
                "earlier step, and were not asked for"
            )

    def _settle_answered(self) -> None:
        """As `settle`, of those that have been answered already."""
        self._client.poll()
        while self._pushed and all(each.answer is not None for each in self._pushed[0][0]):
            requests, room = self._pushed.pop(0)
            self._client.wait(requests)
            self._client.give_back(room)

    def _fetch(self, table: Table, remote: _Remote, ids: Array) -> tuple[Array, Array, Array]:
        """Rows of different ids, in an order of servers; the order, and the push that each contains.

        Returns:
            [n, dim], int64 [n], int64 [n].
        """
        client, dim, route = self._client, table.config.dim, self._by_server(ids)
        width = dim * (2 if table.config.half_rows else table.dtype.itemsize)
        room = client.room(ids.nbytes + len(ids) * width)
        asked = room[: ids.nbytes].view(np.int64)
        np.take(ids, route.order, out=asked)
        rows = room[ids.nbytes :]
        requests: list[Request] = []
        for server, first, last in route.parts():
            if first < last:
                meta = {"table": remote.number} | client.into(rows[first * width : last * width])
                clock = remote.clocks[0][server]
                request = client.send(server, Operation.LOOK_UP, meta, [asked[first:last]], clock=clock)
                requests.append(request)
        answers = client.wait(requests)
        self._settle_answered()
        found = np.empty((len(ids), dim), table.dtype)
        versions = np.empty(len(ids), np.int64)
        parts = [part for part in route.parts() if part[1] < part[2]]
        for (server, first, last), answer in zip(parts, answers, strict=True):
            found[first:last] = answer.arrays[0]
            versions[first:last] = remote.version(server, answer.sequence)
        client.give_back(room)
        return found, route.order, versions

    def _ask(self, table: Table, operation: Operation) -> list[Message]:
        """Ask all servers the same, of all that has been pushed."""
        self.settle()
        remote, client = self._remote(table), self._client
        meta = {"table": remote.number}
        clocks = client.sequences
        return client.wait(
            [client.send(each, operation, dict(meta), clock=clocks[each]) for each in range(client.servers)]
        )

    def _pages(self, table: Table, operation: Operation, asked: dict[str, Any]) -> list[Message]:
        """Ask all servers for what comes in several answers, of all that has been pushed.

        Where servers make a step of the pushes of all ranks, all pages are of one state, as they make no
        further step before this rank pushes.
        """
        self.settle()
        remote, client = self._remote(table), self._client
        clocks = client.sequences
        begins = dict.fromkeys(range(client.servers), 0)
        answers: list[Message] = []
        while begins:
            requests = [
                client.send(
                    each, operation, {"table": remote.number, "begin": begin, **asked}, clock=clocks[each]
                )
                for each, begin in begins.items()
            ]
            page = client.wait(requests)
            answers += page
            following = {each: int(answer.meta["next"]) for each, answer in zip(begins, page, strict=True)}
            begins = {each: begin for each, begin in following.items() if begin >= 0}
        return answers

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
            clocks = collections.deque([client.sequences], self._staleness + 1)
            remote = self._remotes[table] = _Remote(number, clocks)
            if self._hot_rows:
                remote.hot = HotRows(table.config.dim, table.dtype, self._hot_rows)
        return remote

    def _servers_of(self, ids: Array) -> Array:
        return owners_of(ids, self._client.servers)

    def _by_server(self, ids: Array) -> _Route:
        servers = self._servers_of(ids).astype(np.uint16)  # which numpy sorts by counting
        sizes = np.bincount(servers, minlength=self._client.servers)
        return _Route(np.argsort(servers, kind="stable"), [0, *np.cumsum(sizes).tolist()])

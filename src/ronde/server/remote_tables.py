"""Tables with rows on parameter servers: look-ups and pushes by id.

A push is asynchronous: each later request names the push that its answer must contain, so the server applies
it while this rank continues. A server's refusal is raised by the next request, or at the end. With a
staleness a look-up may lack the last pushes, and rows of frequent ids are cached for a while.
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
from ronde.server.array_codec import Array
from ronde.server.hot_rows import HotRows
from ronde.server.table.config_json import write_config
from ronde.server.table.dedup import unique
from ronde.server.table.delta import RowsOfVersion
from ronde.server.table.half import to_half
from ronde.server.table.hashing import owners_of
from ronde.server.table.state import State, divide, merge
from ronde.server.table.table import Table
from ronde.server.table_backend import summed
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.wire import Message, Opcode

__all__ = ["HOT_ROWS", "Served"]

#: Default capacity of a worker's row cache, in rows per table; used with a staleness only.
HOT_ROWS = 1 << 16


@dataclasses.dataclass(eq=False, slots=True)
class _Remote:
    """A table on the servers, as a rank sees it.

    Attributes:
        number: id of the table: tables are created in the same order on all ranks.
        clocks: sequence numbers of this rank on every server, for each of the last pushes.
        pushes: number of pushes so far.
        hot: cache of rows; None without staleness.
    """

    number: int
    clocks: collections.deque[list[int]]
    pushes: int = 0
    hot: HotRows | None = None

    @property
    def oldest(self) -> int:
        """The number of the oldest push that a look-up must contain."""
        return self.pushes - len(self.clocks) + 1

    def version(self, server: int, mark: int) -> int:
        """Return the last push that a server's state contains after `mark` changes."""
        return self.oldest - 1 + sum(clock[server] <= mark for clock in self.clocks)

    def follows(self, clocks: list[int]) -> None:
        """Require that all further look-ups see the changes up to `clocks`."""
        self.clocks.clear()
        self.clocks.append(clocks)
        if self.hot is not None:
            self.hot.clear()


class _Route(NamedTuple):
    """Ids grouped by server.

    Attributes:
        order: permutation that sorts the ids by server; int64 [n].
        bounds: start of each server's part of `order`, and the end.
    """

    order: Array
    bounds: list[int]

    def parts(self) -> list[tuple[int, int, int]]:
        """Return server, start and end of each part."""
        return [(server, *span) for server, span in enumerate(itertools.pairwise(self.bounds))]


class Served:
    """An `Exchange` of ranks that hold no rows themselves.

    Args:
        client: the connections to the servers.
        comm: the ranks, each of which pushes at each step.
        rounds: whether servers combine the pushes of all ranks to one step; else each push is one.
        staleness: number of the last pushes that a look-up may lack.
        hot_rows: capacity of each table's row cache, with a staleness.
        say: function that reports the cache's hit rate at the end.
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
        # Unfinished pushes, with the memory that they refer to.
        self._pushed: list[tuple[list[PendingRequest], Array]] = []

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
        requests: list[PendingRequest] = []
        meta = {"table": remote.number, "lr": lr}
        for server, first, last in route.parts():
            some_ids, some_counts, some_gradients = (each[first:last] for each in pieces)
            arrays = [some_ids, some_gradients, some_counts]
            requests.append(client.send(server, Opcode.UPDATE, dict(meta), arrays, changes=True))
        self._pushed.append((requests, room))
        remote.clocks.append(client.sequences)
        remote.pushes += 1

    def count(self, table: Table) -> int:
        return sum(int(each.meta["count"]) for each in self._ask(table, Opcode.COUNT))

    def state(self, table: Table) -> State:
        answers = self._ask(table, Opcode.ROWS)
        return merge([dict(zip(each.meta["entries"], each.arrays, strict=True)) for each in answers])

    def load(self, table: Table, state: State) -> None:
        remote, client = self._remote(table), self._client
        requests: list[PendingRequest] = []
        # All ranks load the same state; rank 0 sends it.
        first = self._comm.rank == 0
        for server in range(client.servers if first or self._rounds else 0):
            part = divide(state, lambda ids, server=server: self._servers_of(ids) == server)
            arrays = [np.asarray(value, order="C") for value in part.values()]
            meta = {"table": remote.number, "entries": list(part)}
            requests.append(client.send(server, Opcode.PUT_ROWS, meta, arrays if first else [], changes=True))
        client.wait(requests)
        if not self._rounds:
            self._comm.barrier()
        remote.follows(client.sequences)

    def changes(self, table: Table, version: int, follows: int) -> RowsOfVersion | None:
        answers = self._pages(table, Opcode.CHANGES, {"version": version, "follows": follows})
        if not all(each.meta["known"] for each in answers):
            return None
        ids, rows, removed = (np.concatenate([each.arrays[place] for each in answers]) for place in range(3))
        return RowsOfVersion(ids=ids, rows=rows, removed=removed)

    def rows(self, table: Table) -> RowsOfVersion:
        answers = self._pages(table, Opcode.EMBEDDINGS, {})
        ids, rows = (np.concatenate([each.arrays[place] for each in answers]) for place in range(2))
        return RowsOfVersion(ids=ids, rows=rows, removed=np.empty(0, np.int64))

    def settle(self) -> None:
        """Wait for all pushes, and raise a server's refusal.

        Raises:
            ServerRefused: a server could not apply a push.
            PeerLost: a server does not answer.
        """
        pushed, self._pushed = self._pushed, []
        for requests, room in pushed:
            self._client.wait(requests)
            self._client.give_back(room)

    def end(self) -> None:
        """Call `settle`, and report the cache's hit rate."""
        self.settle()
        if self._asked and self._say is not None:
            share = self._found / self._asked
            self._say(
                f"tables: {share:.0%} of the rows that rank {self._comm.rank} looked up were kept from an "
                "earlier step, and were not asked for"
            )

    def _settle_answered(self) -> None:
        """Free the buffers of answered pushes, without waiting."""
        self._client.poll()
        while self._pushed and all(each.answer is not None for each in self._pushed[0][0]):
            requests, room = self._pushed.pop(0)
            self._client.wait(requests)
            self._client.give_back(room)

    def _fetch(self, table: Table, remote: _Remote, ids: Array) -> tuple[Array, Array, Array]:
        """Fetch rows of distinct ids, ordered by server.

        Returns:
            rows [n, dim], the order int64 [n], and the push that each row contains, int64 [n].
        """
        client, dim, route = self._client, table.config.dim, self._by_server(ids)
        width = dim * (2 if table.config.half_rows else table.dtype.itemsize)
        room = client.room(ids.nbytes + len(ids) * width)
        asked = room[: ids.nbytes].view(np.int64)
        np.take(ids, route.order, out=asked)
        rows = room[ids.nbytes :]
        requests: list[PendingRequest] = []
        for server, first, last in route.parts():
            if first < last:
                meta = {"table": remote.number} | client.into(rows[first * width : last * width])
                clock = remote.clocks[0][server]
                request = client.send(server, Opcode.LOOK_UP, meta, [asked[first:last]], clock=clock)
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

    def _ask(self, table: Table, operation: Opcode) -> list[Message]:
        """Send all servers the same request, and wait; answers contain all pushes."""
        self.settle()
        remote, client = self._remote(table), self._client
        meta = {"table": remote.number}
        clocks = client.sequences
        return client.wait(
            [client.send(each, operation, dict(meta), clock=clocks[each]) for each in range(client.servers)]
        )

    def _pages(self, table: Table, operation: Opcode, asked: dict[str, Any]) -> list[Message]:
        """Request all pages of a paged answer from all servers; answers contain all pushes.

        With `rounds`, all pages show one state, as servers make no further step before this rank pushes.
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
                    client.send(each, Opcode.MAKE_TABLE, dict(meta), changes=True)
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
        servers = self._servers_of(ids).astype(np.uint16)  # numpy sorts uint16 by radix
        sizes = np.bincount(servers, minlength=self._client.servers)
        return _Route(np.argsort(servers, kind="stable"), [0, *np.cumsum(sizes).tolist()])

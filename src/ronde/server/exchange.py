"""How the tables of several ranks are one: each holds all rows, or the rows are spread over them.

Gradients of a call on shards are as many times the true ones as there are ranks, those of a call that every
rank makes on the whole batch are the true ones on each. As of parameters, the mean over ranks is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ronde.comm.process_group import Comm
from ronde.server.table.combine import sum_rows, unique
from ronde.server.table.hashing import owners_of
from ronde.server.table.state import State, divide, merge
from ronde.server.table.table import Table
from ronde.server.table.told import RowsOfVersion, all_rows, changed_rows

__all__ = ["Alone", "Exchange", "Replicated", "Sharded", "summed"]


class Exchange(Protocol):
    """What a table asks of the ranks, each time of all of them."""

    def ranks(self) -> Comm | None:
        """The ranks that make a step together; None for one by itself."""
        ...

    def compile(self, table: Table) -> None:
        """Make ready for look-ups of a new table, and compile their loops."""
        ...

    def look_up(self, table: Table, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The embedding of each id; int64 [n] to [n, dim]."""
        ...

    def update(
        self, table: Table, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any], lr: float
    ) -> None:
        """Apply a step by the mean over ranks of these gradients; int64 [n] and [n, dim]."""
        ...

    def count(self, table: Table) -> int:
        """How many rows there are."""
        ...

    def state(self, table: Table) -> State:
        """All that one device would have, as `Table.state`."""
        ...

    def load(self, table: Table, state: State) -> None:
        """Become what `state` gave, this rank's part of it."""
        ...

    def changes(self, table: Table, version: int, follows: int) -> RowsOfVersion | None:
        """What the next version has to tell beyond an earlier one; of the rows that this rank writes.

        Asked of ranks that write, each by itself. From here on changes belong to the version after it.

        Args:
            version: the next; asked for once.
            follows: the one before, which is durable; 0: none is.

        Returns:
            None where it is not known what changed: `rows` are to be told.
        """
        ...

    def rows(self, table: Table) -> RowsOfVersion:
        """All rows that this rank writes, when it has asked for `changes`."""
        ...


class _Held:
    """A rank writes the rows that it has."""

    def changes(self, table: Table, version: int, follows: int) -> RowsOfVersion | None:
        changed = changed_rows(table)
        return changed if follows else None

    def rows(self, table: Table) -> RowsOfVersion:
        return all_rows(table)


class Alone(_Held):
    """One process, which has all rows."""

    def ranks(self) -> Comm | None:
        return None

    def compile(self, table: Table) -> None:
        table.look_up(np.zeros(1, np.int64))

    def look_up(self, table: Table, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return table.look_up(ids)

    def update(
        self, table: Table, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any], lr: float
    ) -> None:
        table.update(ids, gradients, lr)

    def count(self, table: Table) -> int:
        return len(table)

    def state(self, table: Table) -> State:
        return table.state()

    def load(self, table: Table, state: State) -> None:
        table.load(state)


class Replicated(Alone):
    """Every rank has all rows, and makes every update."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def ranks(self) -> Comm | None:
        return self._comm

    def update(
        self, table: Table, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any], lr: float
    ) -> None:
        comm = self._comm
        ids, gradients, counts = summed(ids, gradients)
        sizes = comm.all_gather(torch.tensor([len(ids)])).view(-1).tolist()
        all_ids, all_gradients, all_counts = (
            torch.cat(comm.all_gather_uneven(torch.from_numpy(each), sizes)).numpy()
            for each in (ids, gradients, counts)
        )
        table.update(all_ids, all_gradients / comm.world_size, lr, counts=all_counts)


class Sharded(_Held):
    """Each rank has the rows of its buckets: ids go to their owners, rows come back (as in TorchRec)."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def ranks(self) -> Comm | None:
        return self._comm

    def compile(self, table: Table) -> None:
        table.look_up(unique(np.zeros(1, np.int64)).ids)
        self._by_owner(np.zeros(1, np.int64))

    def look_up(self, table: Table, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        distinct = unique(ids)
        order, sizes = self._by_owner(distinct.ids)
        asked = self._exchange(distinct.ids[order], sizes)
        rows = table.look_up(np.concatenate(asked))
        answered = np.concatenate(self._exchange(rows, [len(each) for each in asked], sizes))
        found = np.empty_like(answered)
        found[order] = answered
        return found[distinct.inverse]

    def update(
        self, table: Table, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any], lr: float
    ) -> None:
        ids, gradients, counts = summed(ids, gradients)
        order, sizes = self._by_owner(ids)
        own_ids = self._exchange(ids[order], sizes)
        back = [len(each) for each in own_ids]
        own_gradients, own_counts = (
            np.concatenate(self._exchange(each[order], sizes, back)) for each in (gradients, counts)
        )
        mean = own_gradients / self._comm.world_size
        table.update(np.concatenate(own_ids), mean, lr, counts=own_counts)

    def count(self, table: Table) -> int:
        return int(self._comm.all_reduce(torch.tensor([len(table)])))

    def state(self, table: Table) -> State:
        return merge(self._comm.all_gather_object(table.state()))

    def load(self, table: Table, state: State) -> None:
        table.load(divide(state, lambda ids: self._owners(ids) == self._comm.rank))

    def _owners(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return owners_of(ids, self._comm.world_size)

    def _by_owner(self, ids: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], list[int]]:
        """The order in which ids go to their owners, and how many to each."""
        owners = self._owners(ids)
        return np.argsort(owners, kind="stable"), np.bincount(
            owners, minlength=self._comm.world_size
        ).tolist()

    def _exchange(
        self, values: np.ndarray[Any, Any], sizes: Sequence[int], come: Sequence[int] | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Send so many of the values to each rank, and return what each sends here."""
        if come is None:
            every = self._comm.all_gather(torch.tensor(sizes))
            come = every[:, self._comm.rank].tolist()
        pieces = torch.from_numpy(values).split(list(sizes))
        return [each.numpy() for each in self._comm.all_to_all(pieces, come)]


def summed(
    ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Each id once, with the sum of its gradients and how often it stands there: less travels."""
    distinct = unique(ids)
    return distinct.ids, sum_rows(gradients, distinct.inverse, len(distinct.ids)), distinct.counts

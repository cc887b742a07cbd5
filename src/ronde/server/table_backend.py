"""Sharing of tables among ranks: replicated, or sharded by id.

For a call on shards of the batch, gradients are W times the true ones (W: number of ranks); for a call that
every rank makes on the whole batch they are the true ones on each rank. As for parameters, the mean over
ranks is right in both cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ronde.comm.process_group import Comm
from ronde.server.table.dedup import sum_rows, unique
from ronde.server.table.delta import RowsOfVersion, all_rows, changed_rows
from ronde.server.table.hashing import owners_of
from ronde.server.table.state import State, divide, merge
from ronde.server.table.table import Table

__all__ = ["LocalTables", "Replicated", "Sharded", "TableBackend", "summed"]


class TableBackend(Protocol):
    """The collective operations of a table; every rank calls each one."""

    def ranks(self) -> Comm | None:
        """Return the ranks that step together; None for a single process."""
        ...

    def compile(self, table: Table) -> None:
        """Prepare a new table for look-ups, and compile their loops."""
        ...

    def look_up(self, table: Table, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the embedding of each id; int64 [n] to [n, dim]."""
        ...

    def update(
        self, table: Table, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any], lr: float
    ) -> None:
        """Apply a step with the mean over ranks of gradients; int64 [n], [n, dim]."""
        ...

    def count(self, table: Table) -> int:
        """Return the number of rows over all ranks."""
        ...

    def state(self, table: Table) -> State:
        """Return the state that a single device would have, as `Table.state`."""
        ...

    def load(self, table: Table, state: State) -> None:
        """Load this rank's part of a state that `state` returned."""
        ...

    def changes(self, table: Table, version: int, follows: int) -> RowsOfVersion | None:
        """Return this rank's changes since a published version, for the next one.

        Only the ranks that write a version call it; it is not a collective. Later changes belong to the
        version after `version`.

        Args:
            version: the next version; requested once.
            follows: the version before, which is durable; 0 before the first.

        Returns:
            None if the changes are not known: all `rows` must be written.
        """
        ...

    def rows(self, table: Table) -> RowsOfVersion:
        """Return all rows that this rank writes; called after `changes`."""
        ...


class _Held:
    """Base of exchanges in which each rank writes the rows that it holds."""

    def changes(self, table: Table, version: int, follows: int) -> RowsOfVersion | None:
        changed = changed_rows(table)
        return changed if follows else None

    def rows(self, table: Table) -> RowsOfVersion:
        return all_rows(table)


class LocalTables(_Held):
    """Exchange of a single process, which has all rows."""

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


class Replicated(LocalTables):
    """Exchange in which every rank has all rows and applies every update."""

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
    """Exchange with rows sharded over ranks: ids are sent to owners, rows come back.

    TorchRec's row-wise sharding does the same.
    """

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
        """Return the permutation that sorts ids by owner, and the count for each owner."""
        owners = self._owners(ids)
        return np.argsort(owners, kind="stable"), np.bincount(
            owners, minlength=self._comm.world_size
        ).tolist()

    def _exchange(
        self, values: np.ndarray[Any, Any], sizes: Sequence[int], come: Sequence[int] | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Send `sizes[i]` values to rank i, and return the values from each rank."""
        if come is None:
            every = self._comm.all_gather(torch.tensor(sizes))
            come = every[:, self._comm.rank].tolist()
        pieces = torch.from_numpy(values).split(list(sizes))
        return [each.numpy() for each in self._comm.all_to_all(pieces, come)]


def summed(
    ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return distinct ids, the sum of each id's gradients, and its count."""
    distinct = unique(ids)
    return distinct.ids, sum_rows(gradients, distinct.inverse, len(distinct.ids)), distinct.counts

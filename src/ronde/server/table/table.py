"""Embedding table: look-up, update, admission and eviction of rows by id."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.cold_tier import ColdTier, RawRows
from ronde.server.table.compiled import compiled, prefetch
from ronde.server.table.config import TableConfig
from ronde.server.table.dedup import Unique, sum_rows, unique
from ronde.server.table.dirty_ids import TouchedIds
from ronde.server.table.index import SEGMENTS, Index, find_chunk
from ronde.server.table.initial import fill
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.optimizers import TouchedRows
from ronde.server.table.rows import RowStore, TableFull
from ronde.server.table.state import ADMISSION, ROWS, State

__all__ = ["RowsOfTable", "Table", "joined"]


@dataclass(frozen=True)
class RowsOfTable:
    """Rows as arrays, by rising id.

    Attributes:
        ids: int64 [n].
        embeddings: [n, dim].
        states: optimizer state; [n, state].
        counts: look-ups in training; uint32 [n].
        versions: step of the last update; uint32 [n].
    """

    ids: np.ndarray[Any, Any]
    embeddings: np.ndarray[Any, Any]
    states: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    versions: np.ndarray[Any, Any]

    def of(self, which: Any) -> RowsOfTable:
        """Return some of the rows: `which` is a slice, row indices, or bool [n]."""
        return RowsOfTable(**{name: getattr(self, name)[which] for name in ROWS})


def joined(parts: Sequence[RowsOfTable]) -> RowsOfTable:
    """Concatenate rows."""
    return RowsOfTable(**{name: np.concatenate([getattr(each, name) for each in parts]) for name in ROWS})


class Table:
    """The rows of one table, or of this server's share, in this process.

    Args:
        config: configuration of the table.
        directory: folder for rows on disk; overrides the config's.
    """

    # Without a `__dict__`, the numbers in here are not taken for values on which a model's behaviour depends.
    __slots__ = (
        "__weakref__",
        "_cold",
        "_filter",
        "_index",
        "_initial",
        "_rows",
        "config",
        "dtype",
        "steps",
        "touched",
    )

    def __init__(self, config: TableConfig, directory: str | None = None) -> None:
        self.config = config
        self.dtype: np.dtype[Any] = np.dtype(config.dtype)
        #: Number of updates.
        self.steps = 0
        #: Records ids with changes, if a reader of changes asked for it.
        self.touched: TouchedIds | None = None
        self._initial = config.first_values
        most = config.rows_at_most
        self._rows = RowStore(config.dim, config.optimizer.state(config.dim), self.dtype, most)
        self._index = Index(most)
        self._filter = config.admit.filter(config.seed, most) if config.admit is not None else None
        self._cold = None
        if config.cold is not None:
            cold = config.cold if directory is None else OnDisk(config.cold.memory_rows, directory)
            self._cold = ColdTier(cold, config.evict, self._rows, self._index)

    def __len__(self) -> int:
        return len(self._rows) + self.on_disk

    @property
    def on_disk(self) -> int:
        """Number of rows that are only on disk."""
        return self._cold.count if self._cold is not None else 0

    @property
    def nbytes(self) -> int:
        """Bytes of rows and index in memory."""
        return self._rows.nbytes + self._index.nbytes

    def look_up(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return each id's embedding, or its first values if it has no row.

        Args:
            ids: int64 [n], any values, repetitions allowed.

        Returns:
            [n, dim].
        """
        out = np.empty((len(ids), self.config.dim), self.dtype)
        missing = _gather(ids, *self._index.arrays, self._rows.keys, self._rows.values, self._rows.first, out)
        if self._cold is not None:
            missing = self._look_up_on_disk(self._cold, ids, missing, out)
        self._fill_first_values(ids, missing, out)
        return out

    def make_ready(self, ids: np.ndarray[Any, Any]) -> None:
        """Move an update's rows to memory, so that it writes nothing to disk.

        Raises:
            ColdRowsFailed: the disk failed, for instance because it is full; no row has changed.
        """
        if self._cold is not None:
            self._cold.bring(unique(ids).ids)

    def update(
        self,
        ids: np.ndarray[Any, Any],
        gradients: np.ndarray[Any, Any],
        lr: float | None = None,
        *,
        counts: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Apply an optimizer step; gradients of equal ids are summed first.

        An id that is admitted now gets a row with its first values; gradients of other ids without a row are
        dropped. Each id's look-up count grows by its number of occurrences.

        Args:
            ids: int64 [n].
            gradients: [n, dim] in the table's dtype.
            lr: learning rate, used if the optimizer has none.
            counts: number of look-ups summed in each gradient; int64 [n], None: one each.

        Raises:
            UsageError: both the optimizer and the call lack a learning rate.
            ColdRowsFailed: the disk failed or is full; nothing has changed.
        """
        rate = self.config.optimizer.lr if self.config.optimizer.lr is not None else lr
        if rate is None:
            raise UsageError(
                f"{type(self.config.optimizer).__name__}() of a table has no learning rate: give it "
                "`lr=` [R463]"
            )
        distinct = unique(ids)
        if len(distinct.ids) < len(ids):
            gradients = sum_rows(gradients, distinct.inverse, len(distinct.ids))
        if counts is not None:
            summed = np.bincount(distinct.inverse, counts, len(distinct.ids))
            distinct = distinct._replace(counts=summed.astype(np.int64))
        slots = self._slots_to_update(distinct)
        kept = slots >= 0
        if not kept.all():
            slots, gradients = slots[kept], gradients[kept]
        self.steps += 1
        rows = TouchedRows(self._rows.values, slots, gradients, self._rows.first)
        self.config.optimizer.step(rows, self.steps, rate)
        self._rows.versions[slots] = self.steps
        if self.touched is not None:
            self.touched.add(distinct.ids if kept.all() else distinct.ids[kept])
        self._sweep()

    def remove(self, ids: np.ndarray[Any, Any]) -> None:
        """Delete the rows of ids; int64 [n], ids without a row are ignored."""
        ids = unique(ids).ids
        slots = self._index.find(ids, self._rows.keys)
        self._give_up(slots[slots >= 0])
        if self._cold is not None:
            self._tell(self._cold.remove(ids[slots < 0]))

    def rows(self, ids: np.ndarray[Any, Any] | None = None) -> RowsOfTable:
        """Return a copy of all rows or of the given ids', by rising id."""
        found: list[RawRows] = []
        if ids is None:
            slots = self._index.slots()
            if self._cold is not None:
                found = list(self._cold.scan())
        else:
            ids = unique(ids).ids
            slots = self._index.find(ids, self._rows.keys)
            if self._cold is not None:
                found = [self._cold.find(ids[slots < 0])[1]]
            slots = slots[slots >= 0]
        parts = [self._in_memory(slots), *map(_of_raw, found)]
        if len(parts) == 1:
            return parts[0]
        whole = joined(parts)
        return whole.of(np.argsort(whole.ids))

    def rows_in_memory(self) -> RowsOfTable:
        """Return a copy of the rows in memory, by rising id."""
        return self._in_memory(self._index.slots())

    def rows_on_disk(self, batches: Iterator[np.ndarray[Any, Any]] | None = None) -> Iterator[RowsOfTable]:
        """Yield copies of the rows that are only on disk, in batches.

        Args:
            batches: all records of the frozen store, for a forked process.
        """
        if self._cold is not None:
            yield from map(_of_raw, self._cold.scan() if batches is None else self._cold.living(batches))

    def freeze(self) -> tuple[str, int]:
        """Freeze rows on disk for a forked process; return (folder, record bytes).

        Raises:
            ColdRowsFailed: the store cannot be frozen.
        """
        return (self._cold.freeze(), self._cold.record_bytes) if self._cold is not None else ("", 0)

    def thaw(self) -> None:
        """Remove the copy that `freeze` made."""
        if self._cold is not None:
            self._cold.thaw()

    def embeddings(
        self, ids: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return ids with a row, copies of their embeddings, and ids without a row.

        Args:
            ids: int64 [n], distinct.

        Returns:
            int64 [k], [k, dim], int64 [n - k]; in the order of `ids`.
        """
        slots = self._index.find(ids, self._rows.keys)
        there = slots >= 0
        rows = self._rows.embeddings(slots[there])
        if self._cold is None or there.all():
            return ids[there], rows, ids[~there]
        cold, found = self._cold.find(ids[~there])
        out = np.empty((len(ids), self.config.dim), self.dtype)
        out[there] = rows
        places = np.flatnonzero(~there)[cold]
        out[places] = found.embeddings
        there[places] = True
        return ids[there], out[there], ids[~there]

    def embeddings_from(
        self, segment: int, most: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
        """Return ids and embeddings of about `most` rows: whole segments from `segment` on.

        Returns:
            int64 [n], [n, dim], and the next segment, -1 after the last.
        """
        ids: list[np.ndarray[Any, Any]] = []
        rows: list[np.ndarray[Any, Any]] = []
        count = 0
        while segment < SEGMENTS and (not ids or count < most):
            slots = self._index.slots_of(segment)
            ids.append(self._rows.keys[slots, 0])
            rows.append(self._rows.embeddings(slots))
            for each in self._cold.scan(segment) if self._cold is not None else ():
                ids.append(each.ids)
                rows.append(each.embeddings)
            count = sum(map(len, ids))
            segment += 1
        return np.concatenate(ids), np.concatenate(rows), segment if segment < SEGMENTS else -1

    def put(self, rows: RowsOfTable) -> None:
        """Write rows as given; rows with the same id are replaced."""
        self._tell(rows.ids)
        # In parts, so that its rows do not push each other out of memory.
        most = len(rows.ids) if self.config.cold is None else max(1, self.config.cold.memory_rows // 2)
        for begin in range(0, len(rows.ids), max(1, most)):
            part = slice(begin, begin + most)
            ids = rows.ids[part]
            slots = self._find_to_change(ids)
            missing = slots < 0
            slots[missing] = self._enter(ids[missing])
            self._rows.write(
                slots, rows.embeddings[part], rows.states[part], rows.counts[part], rows.versions[part]
            )

    def clear(self) -> None:
        """Delete all rows."""
        if self._cold is not None and self.touched is not None:
            for each in self._cold.scan():
                self._tell(each.ids)
        self._give_up(self._index.slots())
        if self._cold is not None:
            self._cold.clear()

    def state(self) -> State:
        """Return the table's state as arrays, independent of the order of insertion."""
        return self._state(self.rows())

    def state_in_memory(self) -> State:
        """Return `state` without the rows that are only on disk."""
        return self._state(self.rows_in_memory())

    def _state(self, rows: RowsOfTable) -> State:
        out = {name: getattr(rows, name) for name in ROWS}
        out["steps"] = np.array(self.steps)
        remembered = {} if self._filter is None else self._filter.state()
        return out | {ADMISSION + name: value for name, value in remembered.items()}

    def load(self, state: State) -> None:
        """Load a state that `state` returned.

        Raises:
            UsageError: the state belongs to a table with another dim or optimizer.
        """
        shapes = (state["embeddings"].shape[1], state["states"].shape[1])
        own = (self._rows.dim, self._rows.state)
        if shapes != own:
            raise UsageError(
                f"a table of {shapes[0]} floats and {shapes[1]} of optimizer state a row cannot be loaded "
                f"into one of {own[0]} and {own[1]}: make it with the same `dim` and `optimizer` [R464]"
            )
        self.clear()
        if self.touched is not None:
            self.touched.lose()
        self.steps = int(np.max(state["steps"]))  # one number, of any shape
        if self._cold is not None:
            self._cold.step = self.steps
        self.put(RowsOfTable(**{name: np.asarray(state[name]) for name in ROWS}))
        if self._filter is not None:
            remembered = {name: value for name, value in state.items() if name.startswith(ADMISSION)}
            self._filter.load({name.removeprefix(ADMISSION): value for name, value in remembered.items()})

    def _slots_to_update(self, distinct: Unique) -> np.ndarray[Any, Any]:
        """Count look-ups; return row numbers for an update, -1 for none."""
        slots = self._find_to_change(distinct.ids)
        missing = slots < 0
        self._rows.counts[slots[~missing]] += distinct.counts[~missing].astype(np.uint32)
        if missing.any():
            new = Unique(distinct.ids[missing], distinct.inverse[:0], distinct.counts[missing])
            admitted = slice(None) if self._filter is None else self._filter.admits(new, self.steps)
            begun = np.full(len(new.ids), -1)
            begun[admitted] = self._begin(new.ids[admitted], new.counts[admitted])
            slots[missing] = begun
        return slots

    def _begin(self, ids: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        slots = self._enter(ids)
        rows = self._rows
        rows.counts[slots] = counts.astype(np.uint32)
        if rows.state:
            rows.values[slots, rows.first + rows.dim : rows.first + rows.dim + rows.state] = (
                self.config.optimizer.state_start
            )
        values = np.empty((len(slots), rows.dim), self.dtype)
        fill(values, ids, self._initial, self.config.seed)
        rows.values[slots, rows.first : rows.first + rows.dim] = values
        return slots

    def _find_to_change(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Move distinct ids' rows to memory; return row numbers, -1 for none."""
        return self._index.find(ids, self._rows.keys) if self._cold is None else self._cold.bring(ids)

    def _enter(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self._cold is not None and len(self) + len(ids) > (self.config.max_rows or math.inf):
            raise TableFull(self._rows.refusal(len(self), len(ids)))
        slots = self._rows.take(len(ids))
        self._rows.keys[slots, 0] = ids
        self._index.insert(ids, slots)
        if self._cold is not None:
            self._cold.touch(slots)
        return slots

    def _look_up_on_disk(
        self,
        cold: ColdTier,
        ids: np.ndarray[Any, Any],
        missing: np.ndarray[Any, Any],
        out: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        """Fill in rows that are on disk; return the indices still missing."""
        asked = unique(ids[missing])
        there, found = cold.find(asked.ids)
        if len(found):
            rows = np.empty((len(asked.ids), self.config.dim), self.dtype)
            rows[there] = found.embeddings
            filled = there[asked.inverse]
            out[missing[filled]] = rows[asked.inverse[filled]]
            missing = missing[~filled]
        slots = self._index.find(ids, self._rows.keys)
        cold.looked_up(slots[slots >= 0], found)
        return missing

    def _in_memory(self, slots: np.ndarray[Any, Any]) -> RowsOfTable:
        """Return a copy of rows, by rising id."""
        keys = self._rows.keys[slots, 0]
        order = np.argsort(keys)
        slots = slots[order]
        return RowsOfTable(
            ids=keys[order],
            embeddings=self._rows.embeddings(slots),
            states=self._rows.states(slots),
            counts=self._rows.counts[slots],
            versions=self._rows.versions[slots],
        )

    def _fill_first_values(
        self, ids: np.ndarray[Any, Any], missing: np.ndarray[Any, Any], out: np.ndarray[Any, Any]
    ) -> None:
        if len(missing):
            values = np.empty((len(missing), self.config.dim), self.dtype)
            fill(values, ids[missing], self._initial, self.config.seed)
            out[missing] = values

    def _sweep(self) -> None:
        """Evict from the index segments due at this step, every `evict.every` steps."""
        evict = self.config.evict
        if self._cold is not None:
            self._tell(self._cold.sweep(self.steps))
        if evict is None:
            return
        for segment in segments_due(self.steps, evict.every):
            slots = self._index.slots_of(segment)
            self._give_up(slots[evict.judge(self._rows, slots, self.steps)])

    def _tell(self, ids: np.ndarray[Any, Any]) -> None:
        """Record ids of changed rows, if changes are tracked."""
        if self.touched is not None:
            self.touched.add(ids)

    def _give_up(self, slots: np.ndarray[Any, Any]) -> None:
        if len(slots):
            ids = self._rows.keys[slots, 0]
            self._tell(ids)
            if self._cold is not None:
                self._cold.forget(ids)
            self._index.remove(ids, slots)
            self._rows.give_back(slots)


def _of_raw(raw: RawRows) -> RowsOfTable:
    return RowsOfTable(**{name: getattr(raw, name) for name in ROWS})


def segments_due(step: int, every: int) -> Iterator[int]:
    """Yield the index segments due at a step, spread evenly over `every` steps."""
    turn = step % every
    yield from range(-(-turn * SEGMENTS // every), -(-(turn + 1) * SEGMENTS // every))


@compiled
def _gather(
    ids: Any, entries: Any, begins: Any, capacities: Any, keys: Any, values: Any, first: Any, out: Any
) -> Any:
    """Copy embeddings to `out`; return the indices of missing ids (int64)."""
    chunk = 64
    dim = out.shape[1]
    line = 64 // values.itemsize
    slots = np.empty(chunk, np.int64)
    missing = np.empty(ids.shape[0], np.int64)
    lost = 0
    for begin in range(0, ids.shape[0], chunk):
        count = min(chunk, ids.shape[0] - begin)
        find_chunk(ids, begin, count, entries, begins, capacities, keys, slots)
        for j in range(count):  # the rest of wide rows; their beginning was prefetched
            if slots[j] >= 0:
                for c in range(line, first + dim, line):
                    prefetch(values, slots[j], c)
        for j in range(count):
            if slots[j] < 0:
                missing[lost] = begin + j
                lost += 1
            else:
                row = values[slots[j]]
                for c in range(dim):
                    out[begin + j, c] = row[first + c]
    return missing[:lost].copy()

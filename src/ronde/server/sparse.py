"""A server's part of embedding tables: rows of the ids that it owns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ronde.server.array_codec import Array
from ronde.server.cold_pages import page_arrays, pages_in, rows_now
from ronde.server.record import Answer, LaterArray, Record, StateOfPart
from ronde.server.request_forms import PutRows, Update, fields_of, read_form
from ronde.server.sparse_checks import check_rows, check_update
from ronde.server.table.config_json import read_config, write_config
from ronde.server.table.delta import ToldIds
from ronde.server.table.half import to_half
from ronde.server.table.state import State
from ronde.server.table.table import Table
from ronde.server.transport.wire import Message, Opcode

__all__ = ["PAGE_BYTES", "SparseShard"]


#: Approximate size of a page, when a table or its changes are read in pages.
PAGE_BYTES = 64 << 20


class SparseShard:
    """A `Part` with embedding tables by number.

    Args:
        page_bytes: approximate bytes of embeddings per page.
        directory: folder for rows on disk; None: the folder for temporary files.
    """

    changes = frozenset({Opcode.MAKE_TABLE, Opcode.UPDATE, Opcode.PUT_ROWS})
    reads = frozenset({Opcode.LOOK_UP, Opcode.COUNT, Opcode.ROWS, Opcode.CHANGES, Opcode.EMBEDDINGS})

    def __init__(self, page_bytes: int = PAGE_BYTES, directory: str | None = None) -> None:
        self.tables: dict[int, Table] = {}
        self._page_bytes, self._directory = page_bytes, directory
        # Frozen store of each table's rows on disk, for a forked process: path and bytes of a record.
        self._frozen: dict[int, tuple[str, int]] = {}
        self._process = os.getpid()
        # A cache, not part of the state: created by the first request.
        self._told: dict[int, ToldIds] = {}

    def combine(self, messages: Sequence[Message]) -> Answer:
        first = messages[0].meta
        match messages[0].operation:
            case Opcode.MAKE_TABLE:
                table = Table(read_config(first["config"]))  # rejects an invalid config before it is logged
                return {"table": int(first["table"]), "config": write_config(table.config)}, []
            case Opcode.PUT_ROWS:
                put = read_form(PutRows, first)
                check_rows(put.entries, messages[0].arrays, self.tables[put.table])
                return fields_of(put), list(messages[0].arrays)
            case _:
                update = read_form(Update, first)
                table = self.tables[update.table]
        for message in messages:
            check_update(update.lr, message.arrays, table)
            if read_form(Update, message.meta) != update:
                raise ValueError(f"worker {message.worker} updates another table, or by another rate [R430]")
        # Before the change is logged: a full disk refuses it.
        table.make_ready(np.concatenate([message.arrays[0] for message in messages]))
        # Copies, as the record outlives the messages.
        arrays = [np.concatenate([message.arrays[place] for message in messages]) for place in range(3)]
        arrays[1] = arrays[1].astype(table.dtype, copy=False)
        if len(messages) > 1:
            arrays[1] /= len(messages)
        return fields_of(update), arrays

    def apply(self, record: Record) -> None:
        number = record.meta["table"]
        match record.operation:
            case Opcode.MAKE_TABLE:
                config = read_config(record.meta["config"])
                if number not in self.tables or self.tables[number].config != config:
                    self.tables[number] = Table(config, self._directory)
                    self._told.pop(number, None)
            case Opcode.PUT_ROWS:
                self.tables[number].load(_state(record.meta, record.arrays))
            case _:
                ids, gradients, counts = record.arrays
                self.tables[number].update(ids, gradients, record.meta["lr"], counts=counts)

    def answer(self, message: Message) -> Answer:
        return {}, []

    def read(self, message: Message) -> Answer:
        table = self.tables[int(message.meta["table"])]
        match message.operation:
            case Opcode.COUNT:
                return {"count": len(table)}, []
            case Opcode.ROWS:
                return _told(table.state())
            case Opcode.CHANGES:
                return self._changes(table, message.meta)
            case Opcode.EMBEDDINGS:
                ids, rows, following = table.embeddings_from(
                    int(message.meta["begin"]), self._rows_of_page(table)
                )
                return {"next": following}, [ids, rows]
            case _:
                (ids,) = message.arrays
                if ids.dtype != np.int64 or ids.ndim != 1:
                    raise ValueError(f"ids must be int64 with one axis, not {ids.dtype} of {ids.ndim} [R430]")
                rows = table.look_up(ids)
        return {}, [to_half(rows) if table.config.half_rows else rows]

    def _changes(self, table: Table, asked: dict[str, Any]) -> Answer:
        """Return a page of a version's changes: ids, embeddings, and removed ids."""
        told = self._told.setdefault(int(asked["table"]), ToldIds())
        ids = told.of(table, int(asked["version"]), int(asked["follows"]))
        if ids is None:
            return {"known": False, "next": -1}, []
        begin = int(asked["begin"])
        end = begin + self._rows_of_page(table)
        return {"known": True, "next": end if end < len(ids) else -1}, list(table.embeddings(ids[begin:end]))

    def _rows_of_page(self, table: Table) -> int:
        return max(1, self._page_bytes // (8 + table.config.dim * table.dtype.itemsize))

    def state(self) -> StateOfPart:
        told: list[dict[str, Any]] = []
        arrays: list[Array | LaterArray] = []
        for number, table in self.tables.items():
            meta, own = _told(table.state_in_memory())
            frozen = self._frozen.get(number) if os.getpid() != self._process else None
            pages = page_arrays(rows_now(table, frozen), table.on_disk)
            told.append(
                {
                    "table": number,
                    "config": write_config(table.config),
                    "entries": meta["entries"],
                    "pages": len(pages),
                }
            )
            arrays += [*own, *pages]
        return {"tables": told}, arrays

    def freeze(self) -> None:
        for number, table in self.tables.items():
            self._frozen[number] = table.freeze()

    def thaw(self) -> None:
        self._frozen.clear()
        for table in self.tables.values():
            table.thaw()

    def load(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        self.tables.clear()
        self._told.clear()
        begin = 0
        for each in meta["tables"]:
            table = self.tables[each["table"]] = Table(read_config(each["config"]), self._directory)
            end = begin + len(each["entries"])
            table.load(_state(each, arrays[begin:end]))
            begin = end + each.get("pages", 0)  # old snapshots have no pages
            for page in pages_in(arrays[end:begin]):
                table.put(page)


def _told(state: State) -> Answer:
    arrays = [np.asarray(value, order="C") for value in state.values()]
    return {"entries": list(state)}, arrays


def _state(meta: dict[str, Any], arrays: Sequence[Array]) -> State:
    return dict(zip(meta["entries"], arrays, strict=True))

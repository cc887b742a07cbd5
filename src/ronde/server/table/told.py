"""What is told of a table for a version of its model: rows that changed, or all."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ronde.server.table.table import Table
from ronde.server.table.touched import TouchedIds

__all__ = ["RowsOfVersion", "ToldIds", "all_rows", "changed_rows"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsOfVersion:
    """Of one table, copied: training goes on.

    Attributes:
        ids: int64 [n], each once.
        rows: [n, dim].
        removed: ids without a row any more; int64 [k].
    """

    ids: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    removed: np.ndarray[Any, Any]


def changed_rows(table: Table) -> RowsOfVersion | None:
    """What changed since this was asked last; None: all rows are to be told. From here on it is known."""
    ids = _cut(table)
    if ids is None:
        return None
    there, rows, removed = table.embeddings(ids)
    return RowsOfVersion(ids=there, rows=rows, removed=removed)


def all_rows(table: Table) -> RowsOfVersion:
    """A copy, by rising id."""
    rows = table.rows()
    return RowsOfVersion(ids=rows.ids, rows=rows.embeddings, removed=np.empty(0, np.int64))


class ToldIds:
    """Which changes of a table are in the version that was asked for last.

    They are kept until a later version is asked for that rests on it, which is so when it is durable; so a
    question may be asked again, and its answer read in pages. All this is of a process: after a restart
    nothing is known, and all rows are to be told.
    """

    __slots__ = ("_ids", "_version")

    def __init__(self) -> None:
        self._version = 0
        self._ids: np.ndarray[Any, Any] | None = None

    def of(self, table: Table, version: int, follows: int) -> np.ndarray[Any, Any] | None:
        """Ids that changed after version `follows` and before `version`; int64 [n], each once.

        None: it is not known, and all rows are to be told. From here on it is known for what rests on
        `version`.
        """
        if version != self._version:
            ids = _cut(table)
            self._ids = ids if follows and follows == self._version else None
            self._version = version
        return self._ids


def _cut(table: Table) -> np.ndarray[Any, Any] | None:
    if table.touched is None:
        table.touched = TouchedIds()
    lost = table.touched.lost
    ids = table.touched.cut()
    return None if lost else ids

"""Rows of a table for a version of its model: changed ones, or all."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ronde.server.table.dirty_ids import TouchedIds
from ronde.server.table.table import Table

__all__ = ["RowsOfVersion", "ToldIds", "all_rows", "changed_rows"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsOfVersion:
    """A copy of one table's rows for a version.

    Attributes:
        ids: int64 [n], distinct.
        rows: [n, dim].
        removed: ids of removed rows; int64 [k].
    """

    ids: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    removed: np.ndarray[Any, Any]


def changed_rows(table: Table) -> RowsOfVersion | None:
    """Return the rows changed since the last call; None if all must be written.

    Starts the record of changes for the next call.
    """
    ids = _cut(table)
    if ids is None:
        return None
    there, rows, removed = table.embeddings(ids)
    return RowsOfVersion(ids=there, rows=rows, removed=removed)


def all_rows(table: Table) -> RowsOfVersion:
    """Return a copy of all rows, by rising id."""
    rows = table.rows()
    return RowsOfVersion(ids=rows.ids, rows=rows.embeddings, removed=np.empty(0, np.int64))


class ToldIds:
    """Changed ids of the version that was requested last.

    They are kept until a version is requested that follows it, which means that it is durable; so a request
    may be repeated, and read in pages. The record lives in the process: after a restart it is empty, and all
    rows must be written.
    """

    __slots__ = ("_ids", "_version")

    def __init__(self) -> None:
        self._version = 0
        self._ids: np.ndarray[Any, Any] | None = None

    def of(self, table: Table, version: int, follows: int) -> np.ndarray[Any, Any] | None:
        """Return ids changed after `follows` and before `version`; int64 [n], distinct.

        None if they are not known: all rows must be written. Starts the record of changes after `version`.
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

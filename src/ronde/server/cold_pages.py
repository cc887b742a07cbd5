"""The rows that a table has on disk, for a snapshot: page by page, so that no process has all in memory."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ronde.server.record import Array, LaterArray
from ronde.server.table.cold_store import records_of
from ronde.server.table.state import ROWS
from ronde.server.table.table import RowsOfTable, Table, joined

__all__ = ["PAGE_ROWS", "page_arrays", "pages_in", "records_from", "rows_now"]

#: Rows of a page.
PAGE_ROWS = 1 << 16


def page_arrays(rows: Iterator[RowsOfTable], count: int) -> list[LaterArray]:
    """The arrays of all pages, in order, each of which is to be called for once, in that order.

    Args:
        rows: so many rows as `count` says, by parts of any size.
    """
    arrays = _arrays_of(_paged(rows, count))
    return [functools.partial(next, arrays)] * (-(-count // PAGE_ROWS) * len(ROWS))


def pages_in(arrays: Any) -> Iterator[RowsOfTable]:
    """The pages whose arrays these are."""
    for begin in range(0, len(arrays), len(ROWS)):
        yield RowsOfTable(**dict(zip(ROWS, arrays[begin : begin + len(ROWS)], strict=True)))


def records_from(path: str, record_bytes: int) -> Iterator[Array]:
    """All records of a frozen store, which another process reads.

    Raises:
        OSError: it does not end well.
    """
    command = [sys.executable, "-m", "ronde.server.cold_reader", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as reader:
        assert reader.stdout is not None
        while batch := reader.stdout.read(PAGE_ROWS * record_bytes):
            yield records_of(batch, record_bytes)
    if reader.returncode:
        raise OSError(5, f"the process that reads rows on disk ended with {reader.returncode}")


def rows_now(table: Table, frozen: tuple[str, int] | None) -> Iterator[RowsOfTable]:
    """The rows that a table has on disk, by parts; in a forked process as they were when they were frozen."""
    if frozen is None or not frozen[0]:
        return table.rows_on_disk()
    return table.rows_on_disk(records_from(*frozen))


def _paged(rows: Iterator[RowsOfTable], count: int) -> Iterator[RowsOfTable]:
    """Pages of `PAGE_ROWS` rows; the last one, of fewer or as many, comes when there is nothing after it."""
    waiting: list[RowsOfTable] = []
    found = 0
    for part in rows:
        waiting.append(part)
        found += len(part.ids)
        while sum(len(each.ids) for each in waiting) > PAGE_ROWS:
            together = joined(waiting)
            yield together.of(slice(PAGE_ROWS))
            waiting = [together.of(slice(PAGE_ROWS, None))]
    if found != count:
        raise ValueError(f"{count} rows are on disk, and {found} have been found there")
    yield joined(waiting)


def _arrays_of(pages: Iterator[RowsOfTable]) -> Iterator[Array]:
    for page in pages:
        for name in ROWS:
            yield getattr(page, name)

"""Pages of the rows that a table keeps on disk, for a snapshot. No process holds all of them in memory."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ronde.server.array_codec import Array
from ronde.server.record import LaterArray
from ronde.server.table.cold_store import records_of
from ronde.server.table.state import ROWS
from ronde.server.table.table import RowsOfTable, Table, joined

__all__ = ["PAGE_ROWS", "page_arrays", "pages_in", "records_from", "rows_now"]

#: Rows of a page.
PAGE_ROWS = 1 << 16


def page_arrays(rows: Iterator[RowsOfTable], count: int) -> list[LaterArray]:
    """Return loaders for the arrays of all pages; call each once, in order.

    Args:
        rows: `count` rows in all, in parts of any size.
    """
    arrays = _arrays_of(_paged(rows, count))
    return [functools.partial(next, arrays)] * (-(-count // PAGE_ROWS) * len(ROWS))


def pages_in(arrays: Any) -> Iterator[RowsOfTable]:
    """Yield the pages that these arrays make up, the inverse of `page_arrays`."""
    for begin in range(0, len(arrays), len(ROWS)):
        yield RowsOfTable(**dict(zip(ROWS, arrays[begin : begin + len(ROWS)], strict=True)))


def records_from(path: str, record_bytes: int) -> Iterator[Array]:
    """Yield all records of a frozen store, which a child process reads.

    Raises:
        OSError: the child process failed.
    """
    command = [sys.executable, "-m", "ronde.server.cold_reader", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as reader:
        assert reader.stdout is not None
        while batch := reader.stdout.read(PAGE_ROWS * record_bytes):
            yield records_of(batch, record_bytes)
    if reader.returncode:
        raise OSError(5, f"the process that reads rows on disk ended with {reader.returncode} [R410]")


def rows_now(table: Table, frozen: tuple[str, int] | None) -> Iterator[RowsOfTable]:
    """Yield a table's rows on disk in parts. A forked process reads them from the frozen store."""
    if frozen is None or not frozen[0]:
        return table.rows_on_disk()
    return table.rows_on_disk(records_from(*frozen))


def _paged(rows: Iterator[RowsOfTable], count: int) -> Iterator[RowsOfTable]:
    """Yield pages of `PAGE_ROWS` rows.

    The last page has at most as many rows, and comes at the end of `rows`.
    """
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
        raise ValueError(f"{count} rows are on disk, and {found} have been found there [R410]")
    yield joined(waiting)


def _arrays_of(pages: Iterator[RowsOfTable]) -> Iterator[Array]:
    for page in pages:
        for name in ROWS:
            yield getattr(page, name)

"""A program that writes the records of a frozen cold store to stdout.

A forked process writes the snapshot. It lacks RocksDB's threads and must not touch the database, so it starts
this program. RocksDB is the only import.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["main", "records_in"]

_BATCH = 1 << 14  # rows
_ROWS, _END = b"r", b"s"


def records_in(path: str) -> Iterator[bytes]:
    """Yield all records, concatenated in batches."""
    from rocksdict import AccessType, Options, Rdict

    database: Any = Rdict(path, Options(raw_mode=True), access_type=AccessType.read_only(False))
    rows = itertools.takewhile(lambda item: item[0] < _END, database.items(False, _ROWS))
    values = (value for _, value in rows)
    while batch := b"".join(itertools.islice(values, _BATCH)):
        yield batch


def main() -> None:
    """Write the records in the folder `sys.argv[1]`. The reader of the output may close it at any time."""
    try:
        for batch in records_in(sys.argv[1]):
            sys.stdout.buffer.write(batch)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()

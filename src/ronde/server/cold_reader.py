"""A process that reads rows from what `ColdStore.freeze` has kept, and writes their records to its output.

A snapshot is written by a forked process, which has none of RocksDB's threads and must not touch it. So it
starts this one, which is a new program. It imports nothing but RocksDB.
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
    """All records, some at a time, behind one another."""
    from rocksdict import AccessType, Options, Rdict

    database: Any = Rdict(path, Options(raw_mode=True), access_type=AccessType.read_only(False))
    rows = itertools.takewhile(lambda item: item[0] < _END, database.items(False, _ROWS))
    values = (value for _, value in rows)
    while batch := b"".join(itertools.islice(values, _BATCH)):
        yield batch


def main() -> None:
    """Read the folder that the first argument names; who reads the output may end at any time."""
    try:
        for batch in records_in(sys.argv[1]):
            sys.stdout.buffer.write(batch)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()

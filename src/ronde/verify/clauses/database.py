"""Reads the rows of SQLite files, which may agree where bytes do not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

__all__ = ["database_rows", "is_database"]

_MAGIC = b"SQLite format 3\x00"


def is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def database_rows(path: Path) -> dict[str, list[list[object]]]:
    """Return the schema, and the rows of every table in their order."""
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
        schema = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        found: dict[str, list[list[object]]] = {"schema": [list(row) for row in schema]}
        for kind, name, _ in schema:
            if kind == "table":
                quoted = name.replace('"', '""')
                rows = database.execute(f'SELECT * FROM "{quoted}"')
                found[f"table {name}"] = [list(row) for row in rows]
    return found

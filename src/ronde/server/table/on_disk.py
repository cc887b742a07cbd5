"""Configuration of a table's rows on disk, the argument `cold`."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from ronde.errors import UsageError

__all__ = ["OnDisk"]


@dataclass(frozen=True)
class OnDisk:
    """Keep at most `memory_rows` rows in memory and the others on disk. The least recently used rows move to
    disk; no row is deleted.

    Args:
        memory_rows: rows in memory at most, per process that holds rows (rank or server); the rows of one
            update are in memory together, even if they are more.
        directory: parent of each table's folder for rows on disk, which is deleted with the table; None: the
            folder for temporary files. A parameter server ignores it and uses the folder of its log.

    Raises:
        UsageError: an argument is invalid; rocksdict is not installed.
    """

    memory_rows: int
    directory: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.memory_rows, int) or self.memory_rows < 1:
            raise UsageError(f"OnDisk(memory_rows={self.memory_rows}): memory_rows must be at least 1 [R467]")
        if self.directory is not None:
            object.__setattr__(self, "directory", os.fspath(self.directory))
            if not os.path.isdir(self.directory):
                raise UsageError(f"OnDisk(directory={self.directory}): there is no such directory [R467]")
        if importlib.util.find_spec("rocksdict") is None:
            raise UsageError(
                "rows on disk (OnDisk) need rocksdict, which is not installed: pip install "
                "'ronde[server]' [R467]"
            )

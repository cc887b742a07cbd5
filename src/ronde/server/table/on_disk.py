"""How many rows of a table memory holds, and where the others lie: what a table is given as `cold=`."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from ronde.errors import UsageError

__all__ = ["OnDisk"]


@dataclass(frozen=True)
class OnDisk:
    """Rows beyond `memory_rows` lie on disk, those that were not asked for longest; none is given up.

    Args:
        memory_rows: rows in the memory of each process that holds rows (a rank, a server), at most; those of
            one update are there together, also where they are more.
        directory: where each table makes a folder for its other rows, which goes with it; None is the folder
            for temporary files. A parameter server has them beside its log, wherever that is.

    Raises:
        UsageError: one of these has a value that is not possible; rocksdict is not installed.
    """

    memory_rows: int
    directory: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.memory_rows, int) or self.memory_rows < 1:
            raise UsageError(f"OnDisk(memory_rows={self.memory_rows}): memory_rows is 1 or more")
        if self.directory is not None:
            object.__setattr__(self, "directory", os.fspath(self.directory))
            if not os.path.isdir(self.directory):
                raise UsageError(f"OnDisk(directory={self.directory}): there is no such directory")
        if importlib.util.find_spec("rocksdict") is None:
            raise UsageError(
                "rows on disk (OnDisk) need rocksdict, which is not installed: pip install 'ronde[server]'"
            )

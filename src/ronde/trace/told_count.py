"""A count that one rank of a host raises and the others read, in shared memory."""

from __future__ import annotations

import struct
from pathlib import Path

from ronde.trace.shared_file import shared_file

__all__ = ["ToldCount"]

_NUMBER = struct.Struct("<Q")


class ToldCount:
    """One rank's view of it.

    Args:
        path: the file, the same for all ranks of the host.
    """

    def __init__(self, path: Path) -> None:
        self._memory = shared_file(path, _NUMBER.size, make=True)

    def tell(self, count: int) -> None:
        _NUMBER.pack_into(self._memory, 0, count)

    def told(self) -> int:
        return _NUMBER.unpack_from(self._memory)[0]

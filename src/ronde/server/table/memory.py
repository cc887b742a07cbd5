"""Reserved address space for arrays that grow without being copied."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from ronde.comm.split import round_up

__all__ = ["ReservedMemory"]

_MAP_NORESERVE = 0x4000  # Linux: address space without committed memory
_HUGE_PAGE = 2 << 20


class ReservedMemory:
    """Zeroed memory; only pages that are written use physical memory.

    Args:
        nbytes: upper limit of bytes, reserved as address space only.

    Raises:
        MemoryError: the system refuses the reservation (`vm.overcommit_memory=2`, `ulimit -v`).
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = round_up(nbytes, _HUGE_PAGE)
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            self._map = mmap.mmap(-1, self.nbytes, flags=flags)
        except OSError as error:
            raise MemoryError(
                f"{self.nbytes / 2**30:.0f} GiB of addresses could not be reserved for a table ({error}): "
                "set vm.overcommit_memory to 0 or 1, lift `ulimit -v`, or give the table a smaller "
                "`max_rows` [R466]"
            ) from None
        self.array: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._map, np.uint8)

    def prefer_huge_pages(self, begin: int, end: int) -> None:
        """Ask for 2 MiB pages between two bytes, to reduce TLB misses."""
        begin = round_up(begin, _HUGE_PAGE)
        if begin < end:
            try:
                self._map.madvise(mmap.MADV_HUGEPAGE, begin, end - begin)
            except OSError:  # a kernel without huge pages
                return

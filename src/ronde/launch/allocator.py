"""Options of glibc's malloc for ranks on the CPU: huge pages, and few returns.

glibc returns large blocks to the kernel as soon as they are freed, and the kernel hands them out again page
by page, each filled with zeros. A training step frees and asks for the same blocks over and over. Blocks that
stay in the heap cost nothing, and the kernel may back the heap with huge pages, which speed up reading
matrices (docs/adr/0007-ranks-keep-freed-memory.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

__all__ = ["give_back", "keeping_memory", "returning_memory"]

_KEEP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 46),
    "MALLOC_TOP_PAD_": str(64 << 20),
    # glibc before 2.35 ignores it.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def keeping_memory(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of glibc's malloc to add, unless the user has chosen."""
    return {} if _chosen(environment) else dict(_KEEP)


def returning_memory(environment: Mapping[str, str], *, blocks: int) -> dict[str, str]:
    """Return `keeping_memory` for a process that often frees and allocates large blocks.

    Args:
        blocks: size in bytes from which a freed block is returned at once; the heap would otherwise grow by
            fragmentation.
    """
    return {} if _chosen(environment) else {"MALLOC_MMAP_THRESHOLD_": str(blocks)}


def give_back() -> None:
    """Return free memory to the kernel, if the allocator supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _chosen(environment: Mapping[str, str]) -> bool:
    chosen = any(name.startswith("MALLOC_") for name in environment)
    return bool(chosen or environment.get("GLIBC_TUNABLES") or environment.get("LD_PRELOAD"))

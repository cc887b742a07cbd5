"""Blocks of `multiprocessing.shared_memory` with a name are refused: a host of several ranks has it once."""

from __future__ import annotations

import functools
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from ronde.errors import UsageError
from ronde.patching.patches import Patches

__all__ = ["install"]

_UNNAMED = "psm_"  # how Python's own names begin: those are new on every rank


def install(patches: Patches) -> None:
    plain: Any = SharedMemory.__init__

    @functools.wraps(plain)
    def init(block: Any, name: str | None = None, create: bool = False, *rest: Any, **options: Any) -> None:
        if create and name and not name.startswith(_UNNAMED):
            raise UsageError(
                f"the script makes a block of shared memory with the name {name!r}, which a host has once, "
                f"and every rank would make it; leave out the name, and hand on block.name"
            )
        plain(block, name, create, *rest, **options)

    patches.set(SharedMemory, "__init__", init)

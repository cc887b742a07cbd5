"""Embedding tables of a script are those of all ranks: each holds all rows, or its part, as the plan says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ronde.patching.late_patches import LatePatches
from ronde.patching.patches import Patches
from ronde.plan import Plan

if TYPE_CHECKING:
    from ronde.comm.process_group import Comm

__all__ = ["install", "why_none_is_spread"]

_HOME = "ronde.server.embedding_table"

Around = Callable[[], AbstractContextManager[None]]


def install(patches: Patches, comm: Comm, plan: Plan, unmediated: Around) -> None:
    """Once the script imports tables: they need numba, which takes half a second.

    Args:
        unmediated: inside, files that are written are each rank's own: what numba compiles.
    """

    def join(module: ModuleType) -> None:
        from ronde.server.exchange import Replicated, Sharded

        kind = Sharded if plan.state.sparse == "sharded" else Replicated
        patches.set(module.EmbeddingTable, "exchange", _Unmediated(kind(comm), unmediated))

    late = LatePatches({_HOME: join})
    late.install()
    patches.undo(late.uninstall)


def why_none_is_spread(plan: Plan, world_size: int, *, spread: bool) -> str:
    """A sentence for a plan that spreads rows of a script which has none to spread, else "".

    Args:
        spread: rows of torch's own embeddings are or were.
    """
    if plan.state.sparse != "sharded" or world_size == 1 or _HOME in sys.modules or spread:
        return ""
    return (
        "sparse=sharded spreads nothing: it is for rows of a ronde.EmbeddingTable, or of an nn.Embedding or "
        "nn.EmbeddingBag with sparse=True (without micro-batches, compile=true and precision=fp16), and the "
        "script has none that can be spread"
    )


class _Unmediated:
    """An `Exchange`, each call of which is made so."""

    def __init__(self, exchange: Any, around: Around) -> None:
        self._exchange, self._around = exchange, around

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._exchange, name)

        def call(*arguments: Any) -> Any:
            with self._around():
                return method(*arguments)

        return call

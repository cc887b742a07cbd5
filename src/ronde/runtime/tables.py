"""Embedding tables of a script are those of all ranks: each holds all rows, or its part, as the plan says."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from ronde.patching.late_patches import LatePatches
from ronde.patching.patches import Patches
from ronde.plan import Plan

if TYPE_CHECKING:
    from ronde.comm.process_group import Comm

__all__ = ["install"]


def install(patches: Patches, comm: Comm, plan: Plan) -> None:
    """Once the script imports tables: they need numba, which takes half a second."""

    def join(module: ModuleType) -> None:
        from ronde.server.exchange import Replicated, Sharded

        kind = Sharded if plan.state.sparse == "sharded" else Replicated
        patches.set(module.EmbeddingTable, "exchange", kind(comm))

    late = LatePatches({"ronde.server.embedding_table": join})
    late.install()
    patches.undo(late.uninstall)

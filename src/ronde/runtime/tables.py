"""Embedding tables of a script, joined over ranks: whole or in parts.

Each rank holds all rows, or its part, as the plan says.
"""

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
    from ronde.server.transport.client import Client

__all__ = ["install", "why_none_is_spread"]

_HOME = "ronde.server.embedding_table"

Around = Callable[[], AbstractContextManager[None]]


def install(
    patches: Patches,
    comm: Comm,
    plan: Plan,
    unmediated: Around,
    client: Client | None,
    say: Callable[[str], None],
) -> None:
    """Join tables of ranks when the script first imports `ronde.table`.

    numba, which tables need, takes half a second to import.

    Args:
        unmediated: context manager in which written files are each rank's own: numba's compiled code.
        client: connections to parameter servers, which have the rows where there are servers.
        say: tells the user at the end.
    """

    def join(module: ModuleType) -> None:
        from ronde.server.table_backend import Replicated, Sharded

        if client is not None:
            from ronde.server.remote_tables import Served

            # Servers with dense parameters too apply each rank's change separately unless update=sync.
            rounds = plan.update.rule == "sync" or plan.state.placement != "server"
            staleness = plan.update.staleness or 0
            exchange = Served(client, comm, rounds=rounds, staleness=staleness, say=say)
            client.before_end.append(exchange.end)
        else:
            exchange = Sharded(comm) if plan.state.sparse == "sharded" else Replicated(comm)
        patches.set(module.EmbeddingTable, "exchange", _Unmediated(exchange, unmediated))

    late = LatePatches({_HOME: join})
    late.install()
    patches.undo(late.uninstall)


def why_none_is_spread(plan: Plan, world_size: int, *, spread: bool) -> str:
    """Explain why a plan spreads no rows of this script, else "".

    Args:
        spread: rows of torch's own embeddings are or were.
    """
    alone = world_size == 1 and not plan.state.server_count
    if plan.state.sparse != "sharded" or alone or _HOME in sys.modules or spread:
        return ""
    return (
        "sparse=sharded spreads nothing: it is for rows of a ronde.EmbeddingTable, or of an nn.Embedding or "
        "nn.EmbeddingBag with sparse=True (without compile=true, precision=fp16 and a cut "
        "model), and the script has none that can be spread [R470]"
    )


class _Unmediated:
    """Wrapper of an `Exchange`: each call runs inside of `around`."""

    def __init__(self, exchange: Any, around: Around) -> None:
        self._exchange, self._around = exchange, around

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._exchange, name)

        def call(*arguments: Any) -> Any:
            with self._around():
                return method(*arguments)

        return call

"""`state=server`: parameter servers sum gradients, and step optimizers if the plan says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.servers.buffer import ServedBuffers
from ronde.parallel.servers.gradients import ServedGradients
from ronde.parallel.servers.update import ServedUpdate
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.policies.servers import over_servers
from ronde.server.transport.client import Client
from ronde.shards import gradients
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.strategy import Strategy
from ronde.strategies.whole_state import why_state_is_whole
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context

__all__ = ["ServerStrategy"]


@final
class ServerStrategy(Strategy):
    """Reduces gradients on parameter servers, which may also own optimizer state.

    Args:
        comm: the reducer's group.
        client: connections to the servers.
    """

    name = "servers"

    def __init__(
        self,
        plan: Plan,
        comm: Comm,
        context: Context,
        reducer: Reducer,
        client: Client,
        note: Callable[[str], None],
    ) -> None:
        self._plan, self._context, self._note = plan, context, note
        self._gradients: ServedGradients | None = None
        self.state = ShardedState()
        if plan.update.optimizer_on == "server":
            partition = over_servers(client.servers)
            served = self._gradients = ServedGradients(comm, client, partition)
            reducer.reduce_to(shards=served)
            update = ServedUpdate(context, client, partition, served, note)
            self.state = ShardedState(gradients=(served,), update=update)
        else:
            reducer.reduce_to(allocate=ServedBuffers(client, comm.world_size).allocate)

    def install(self, patches: Patches) -> None:
        if self._gradients is not None:
            gradients.install(patches, self._context, self._gradients)
        self.state.install(patches)

    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        return nullcontext()

    def around_backward(self) -> AbstractContextManager[object]:
        return nullcontext()

    def before_first_step(self, optimizer: Any) -> None:
        if self._gradients is None:
            return
        why = why_state_is_whole(self._plan, optimizer, self._plan.state)
        if why:
            self._note(why)

    def notes(self) -> list[str]:
        return []

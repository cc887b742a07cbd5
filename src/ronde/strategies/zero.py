"""`state=zero1`, `zero2`, `zero3`, `central` and `offload`: state in shards over replicas of a model.

ZeRO (Rajbhandari et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.tensor.deferred_init import Building
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.plan.state import State
from ronde.policies.units import find_units
from ronde.policies.zero import RUNS, divided, in_equal_parts
from ronde.shards import gradients
from ronde.shards.host_options import can_step_on_host
from ronde.shards.optimizer_shards import OptimizerShards
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.sharded_update import ShardedUpdate
from ronde.strategies.memory_homes import homes
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.strategy import Strategy
from ronde.strategies.whole_state import why_state_is_whole
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context

__all__ = ["ZeroStrategy", "is_worth_sharding"]


@final
class ZeroStrategy(Strategy):
    """Shards state as the plan's state axis asks.

    Args:
        comm: the reducer's group.
        context: context of the ranks over which state is cut.
        script: context of the script.
    """

    name = "zero"

    def __init__(
        self,
        plan: Plan,
        comm: Comm,
        context: Context,
        reducer: Reducer,
        note: Callable[[str], None],
        script: Context,
    ) -> None:
        self._plan, self._context, self._note = plan, context, note
        state = self._state = plan.state.on(comm.world_size)
        home, home_of_shards = homes(state)
        partition = divided(RUNS.get(state.placement, in_equal_parts), comm.world_size)
        self._gradients: ReducedGradients | None = None
        if state.cuts_gradients:
            self._gradients = ReducedGradients(comm, partition.assign, home_of_shards)
            reducer.reduce_to(shards=self._gradients)
        self._parameters: ShardedParameters | None = None
        if state.cuts_parameters:
            self._parameters = ShardedParameters(context, partition, home_of_shards, note, find_units, script)
        held = OptimizerShards(partition, context.rank, home, self._gradients, self._parameters)

        def takes(optimizer: Any) -> bool:
            return is_worth_sharding(state, optimizer)

        update = ShardedUpdate(context, held, takes, note)
        shards = () if self._gradients is None else (self._gradients,)
        if self._parameters is None:
            self.state = ShardedState(gradients=shards, update=update)
        else:
            self.state = ShardedState(
                parameters=(self._parameters,),
                gradients=shards,
                update=update,
                saved=SavedParameters(self._parameters),
                building=Building(context, self._parameters.cut_new),
            )

    def install(self, patches: Patches) -> None:
        if self._gradients is not None:
            kept = () if self._parameters is None else (self._parameters.lasting,)
            gradients.install(patches, self._context, self._gradients, *kept)
        self.state.install(patches)

    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        return nullcontext() if self._parameters is None else self._parameters.calling(module)

    def around_backward(self) -> AbstractContextManager[object]:
        return self.state.around_backward()

    def before_first_step(self, optimizer: Any) -> None:
        why = why_state_is_whole(self._plan, optimizer, self._state)
        if why:
            self._note(why)

    def notes(self) -> list[str]:
        return []


def is_worth_sharding(state: State, optimizer: Any) -> bool:
    """Return whether to cut an optimizer's step.

    For a step without state, sharing whole parameters would cost more than the cut saves.

    Args:
        state: state axis of the plan, on these ranks.
    """
    if state.offloads_optimizer and not can_step_on_host(optimizer):
        return False
    if state.cuts_gradients or type(optimizer) is not torch.optim.SGD:
        return True
    return any(group["momentum"] != 0 for group in optimizer.param_groups)

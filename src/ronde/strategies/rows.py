"""`sparse=sharded`: rows of sparse embeddings spread over ranks, without other sharded state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.sparse.lookup import RowLookup
from ronde.parallel.sparse.units import RowUnits
from ronde.patching.patches import Patches
from ronde.policies.rows import rows
from ronde.shards import gradients
from ronde.shards.optimizer_shards import ROW_OPTIMIZERS, OptimizerShards, updates_rows
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.sharded_update import ShardedUpdate
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.strategy import Strategy
from ronde.sync.gradient_shards import Spans
from ronde.sync.memory_home import OnDevice
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context

__all__ = ["RowStrategy"]


@final
class RowStrategy(Strategy):
    """Looks up embedding rows on the ranks that have them.

    Args:
        comm: the reducer's group.

    Attributes:
        look_up: lookup of spread rows.
        has_spread_rows: whether rows of some embedding are spread, or were.
    """

    name = "rows"

    def __init__(self, comm: Comm, context: Context, reducer: Reducer, note: Callable[[str], None]) -> None:
        self._context, self._note = context, note
        self._partition = rows(comm.world_size)
        parameters = self._parameters = ShardedParameters(
            context, self._partition, OnDevice(), note, RowUnits(note)
        )
        self._gradients = ReducedGradients(comm, self._spans_of, OnDevice())
        reducer.reduce_to(rows=self._gradients)
        held = OptimizerShards(
            self._partition, context.rank, OnDevice(), self._gradients, parameters, whole_too=False
        )
        update = ShardedUpdate(context, held, self._has_rows, note, ROW_OPTIMIZERS, updates_rows)
        self._saved = SavedParameters(parameters)
        self.state = ShardedState(
            parameters=(parameters,), gradients=(self._gradients,), update=update, saved=self._saved
        )
        self.look_up = RowLookup(context, parameters)
        self.has_spread_rows = False

    def install(self, patches: Patches) -> None:
        gradients.install(patches, self._context, self._gradients, self._parameters.lasting, clips=False)
        self.state.install(patches, hooks_at_once=False)

    @contextmanager
    def around_call(self, module: torch.nn.Module) -> Iterator[None]:
        with self._parameters.calling(module):
            if self._parameters.are_there:
                self.has_spread_rows = True
                if not self._saved.begin():
                    self._parameters.pin()  # rows that hooks of the script use must stay on this rank
            yield

    def around_backward(self) -> AbstractContextManager[object]:
        return self.state.around_backward()

    def before_first_step(self, optimizer: Any) -> None:
        if not updates_rows(optimizer) and self._has_rows(optimizer):
            known = ", ".join(kind.__name__ for kind in ROW_OPTIMIZERS)
            self._note(
                f"{type(optimizer).__name__} needs whole rows of an embedding on every rank in each step: "
                f"sparse=sharded keeps them spread only for {known} without momentum [R471]"
            )

    def notes(self) -> list[str]:
        return []

    def _spans(self, weight: torch.Tensor) -> Spans | None:
        return None if self._parameters.own(weight) is None else self._partition.spec(weight)

    def _spans_of(self, weights: Any) -> list[Spans | None]:
        return [self._spans(weight) for weight in weights]

    def _has_rows(self, optimizer: Any) -> bool:
        members = (tensor for group in optimizer.param_groups for tensor in group["params"])
        return any(self._spans(tensor) is not None for tensor in members)

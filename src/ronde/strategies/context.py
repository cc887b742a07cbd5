"""`context=N`: sequences cut over the ranks of a context group inside of calls.

State is whole there, or cut by another strategy over all ranks, which have the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.context.sequences import Sequences
from ronde.patching.patches import Patches
from ronde.plan.mesh import ContextAttention
from ronde.strategies.own_mixtures import OwnMixtures
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.strategy import Strategy
from ronde.tensor.context import Context, Region

__all__ = ["ContextStrategy"]


@final
class ContextStrategy(Strategy):
    """Runs calls of models on parts of sequences.

    Args:
        context: context of the script.
        group: the context group, of ranks that have the same rows.
        item: plan item by which messages name the strategy.
        way: algorithm by which ranks attend to each other's keys.
        averaged_later: predicate for leaves with gradients that the reducer averages over this group too.

    Attributes:
        mixtures: handler of mixtures with all experts on all ranks, unless another strategy handles them; may
            be set.
        group: context in which sequences are cut.
        sequences: executor of a call.
    """

    name = "context"

    def __init__(
        self,
        context: Context,
        group: Comm,
        item: str,
        way: ContextAttention,
        averaged_later: Callable[[torch.Tensor], bool],
    ) -> None:
        self.state = ShardedState()
        self._script, self._item = context, item
        # Ranks of the group agree on all that a model computes of whole values.
        self.group = Context.within_rows(group)
        self.group.averaged_later = averaged_later
        self.sequences = Sequences(self.group, item, way)
        self.mixtures: OwnMixtures | None = None

    def install(self, patches: Patches) -> None:
        self.sequences.install(patches)
        if self.mixtures is not None:
            self.mixtures.install(patches)

    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        if self.mixtures is not None:
            self.mixtures.take(module)
        observed = self._script.region is Region.OBSERVED
        return self.sequences.observing(module) if observed else nullcontext()

    def around_backward(self) -> AbstractContextManager[object]:
        return nullcontext()

    def before_first_step(self, optimizer: Any) -> None:
        """Skip the note: optimizers have whole state as far as this strategy is concerned."""

    def notes(self) -> list[str]:
        if self.sequences.cut_some:
            return []
        return [
            f"{self._item} cuts nothing: no module that runs as one piece has attention over its sequences, "
            "so every rank of a group computed everything [R251]"
        ]

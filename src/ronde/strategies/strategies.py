"""The ordered strategies of a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

import torch

from ronde.modules.calls import Calls
from ronde.modules.model_edge import WithLoss
from ronde.modules.sharded_call import Way
from ronde.patching.patches import Patches
from ronde.strategies.rows import RowStrategy
from ronde.strategies.sharded_state import ShardedState, all_of
from ronde.strategies.strategy import Strategy

__all__ = ["Schedule", "Strategies", "by_script"]

Schedule = Callable[[torch.nn.Module, Any, Any], Callable[[Any, Any, Any], torch.Tensor] | None]
"""Creates a step in one call, given a model, a loss and an attempt callback.

None where the script's own calls make the step.
"""


def by_script(model: torch.nn.Module, loss_fn: Any, attempt: Any) -> None:
    """Return no schedule: the script's own calls make the steps."""


def _nothing(module: torch.nn.Module) -> bool:
    return False


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """Executes a plan on models.

    Attributes:
        ordered: strategies, the outermost around a call first.
        state: shards of the one strategy that keeps some.
        way: executor of a model's call on this rank's rows.
        cuts_calls: whether the executor has parts of models or of samples on ranks, for any rows.
        rows: the strategy that spreads rows of embeddings, or None.
        schedule: factory of steps in one call.
        with_loss: factory of an executor for models that compute their loss, given the script's calls; None
            where these run in parts.
        sends_gradients: whether in a backward one rank waits for another alone.
        must_see: predicate for modules with mixtures to be tried in an observed call.
    """

    ordered: Sequence[Strategy]
    state: ShardedState
    way: Way
    cuts_calls: bool = False
    rows: RowStrategy | None = None
    schedule: Schedule = by_script
    with_loss: Callable[[Calls, Any], WithLoss] | None = None
    sends_gradients: bool = False
    must_see: Callable[[torch.nn.Module], bool] = _nothing

    def install(self, patches: Patches) -> None:
        for each in self.ordered:
            each.install(patches)

    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        return all_of([each.around_call(module) for each in self.ordered])

    def around_backward(self) -> AbstractContextManager[object]:
        return all_of([each.around_backward() for each in self.ordered])

    def before_first_step(self, optimizer: Any) -> None:
        for each in self.ordered:
            each.before_first_step(optimizer)

    def notes(self) -> list[str]:
        return [note for each in self.ordered for note in each.notes()]

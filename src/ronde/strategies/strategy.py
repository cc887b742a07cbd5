"""Abstract hooks of a strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from ronde.patching.patches import Patches
from ronde.plan.strategies import StrategyName
from ronde.strategies.sharded_state import ShardedState

__all__ = ["Strategy"]


class Strategy(ABC):
    """A part of a plan, with hooks around calls and backwards of models.

    Attributes:
        name: name in the list of `ronde plan show --verbose`.
        state: shards that the strategy keeps, perhaps none.
    """

    name: ClassVar[StrategyName]
    state: ShardedState

    @abstractmethod
    def install(self, patches: Patches) -> None:
        """Replace functions of torch; `patches` puts them back."""

    @abstractmethod
    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        """Surround an outermost call of a model."""

    @abstractmethod
    def around_backward(self) -> AbstractContextManager[object]:
        """Surround a backward of the script with the reduction of its gradients."""

    @abstractmethod
    def before_first_step(self, optimizer: Any) -> None:
        """Note an optimizer with whole state under a plan that cuts state."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return sentences for the user at the end."""

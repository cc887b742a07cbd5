"""Gathers and gradient reductions of experts that several ranks have.

Which experts have tokens differs between ranks, so the time of their use and of their gradients does too.
Collectives of the ranks that have the same experts are run at points that every rank passes: before a
mixture's experts are called, before backward reaches them, and after it has passed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ronde.patching.torch_internals import current_graph_task_id
from ronde.strategies.blocks import ModelBlocks

__all__ = ["HeldExperts"]


@final
class HeldExperts:
    """Experts of one mixture that this rank has.

    Args:
        parameters: parameters of all of its experts.
    """

    def __init__(self, blocks: ModelBlocks, parameters: Sequence[torch.Tensor]) -> None:
        self._blocks, self._parameters = blocks, parameters
        # Calls that backward has not reached yet, and the number of backwards when counting began.
        self._to_come, self._since = 0, 0

    def gather(self) -> None:
        """Gather this rank's experts. A collective of their replicas."""
        if torch.is_grad_enabled() and current_graph_task_id() == -1:
            self._begin()
            self._to_come += 1
        self._blocks.gather_experts(self._parameters)

    def passed(self) -> None:
        """Count a call that backward has passed; send gradients after the last. A collective.

        The ranks are those of `gather`. Where a counted call has no backward, gradients are sent when
        backward ends.
        """
        self._begin()
        self._to_come = max(0, self._to_come - 1)
        if not self._to_come:
            self._blocks.send_experts(self._parameters)

    def _begin(self) -> None:
        ended = self._blocks.backwards
        if ended != self._since:
            self._to_come, self._since = 0, ended

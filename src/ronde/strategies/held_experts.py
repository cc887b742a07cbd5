"""Experts that several ranks have are gathered, and their gradients sent, alike.

Which experts have tokens differs between ranks, so when they are used, and when their gradients come, does
too. What needs the ranks that have the same experts is done where every rank comes by: before a mixture's
experts are called, before backward comes to them, and when it has been past them.
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
    """The experts of one mixture that this rank has.

    Args:
        parameters: the parameters of all of its experts.
    """

    def __init__(self, blocks: ModelBlocks, parameters: Sequence[torch.Tensor]) -> None:
        self._blocks, self._parameters = blocks, parameters
        # Calls past which backward has not been, since so many backwards ended.
        self._to_come, self._since = 0, 0

    def gather(self) -> None:
        """Gather this rank's experts. A collective of the ranks that have the same."""
        if torch.is_grad_enabled() and current_graph_task_id() == -1:
            self._begin()
            self._to_come += 1
        self._blocks.gather_experts(self._parameters)

    def passed(self) -> None:
        """Backward has been past a call: after the last of them gradients are sent. A collective as `gather`.

        Where a call was counted whose backward never comes, they are sent when backward ends.
        """
        self._begin()
        self._to_come = max(0, self._to_come - 1)
        if not self._to_come:
            self._blocks.send_experts(self._parameters)

    def _begin(self) -> None:
        ended = self._blocks.backwards
        if ended != self._since:
            self._to_come, self._since = 0, ended

"""Calls of modules in which this rank has blocks of matrices."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import final

import torch

from ronde.parallel.block_autograd import reach_blocks
from ronde.parallel.stand_ins import StandIns
from ronde.patching.patches import Patches
from ronde.plan.mesh import SequenceParallel
from ronde.strategies.blocks import ModelBlocks
from ronde.tensor.context import Context

__all__ = ["TensorCalls"]


@final
class TensorCalls:
    """Has modules hold blocks for the time of a call, and of a backward.

    Args:
        script: the context of the script.
        group: that of the tensor group.
        way: in which tokens are cut between products of blocks.

    Attributes:
        stand_ins: puts blocks into modules.
    """

    def __init__(self, script: Context, group: Context, blocks: ModelBlocks, way: SequenceParallel) -> None:
        self._script, self._blocks = script, blocks
        # Models that have been called with a graph.
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.stand_ins = StandIns(group, way, blocks.gradients, blocks.parameters.latest)

    def install(self, patches: Patches) -> None:
        reach_blocks(patches, self._script, self.stand_ins, self._in_backward)

    @contextmanager
    def whole(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a call for which every rank gathers the model."""
        self._called.discard(module)
        with self._blocks.whole_call(module):
            yield

    @contextmanager
    def cut(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a call in which every rank has its blocks."""
        with self._blocks.cut_call(module), self.inside(module):
            yield

    def inside(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Inside, a module holds blocks, and so it does in backward."""
        if torch.is_grad_enabled():
            self._called.add(module)
        return self.stand_ins.inside([module])

    def _in_backward(self) -> AbstractContextManager[None]:
        """Around autograd's engine: a checkpoint computes again what it has computed of blocks."""
        self._blocks.parameters.rest(keep_last=False)
        return self.stand_ins.inside(list(self._called))

"""Calls of modules with blocks of matrices on this rank."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import final

import torch

from ronde.parallel.block_autograd import reach_blocks
from ronde.parallel.tensor.cut_parameters import StandIns
from ronde.patching.patches import Patches
from ronde.plan.mesh import SequenceParallel
from ronde.strategies.blocks import ModelBlocks
from ronde.tensor.context import Context

__all__ = ["TensorCalls"]


@final
class TensorCalls:
    """Puts blocks into modules for the time of a call, and of a backward.

    Args:
        script: context of the script.
        group: context of the tensor group.
        way: form of sequence parallelism between products of blocks.

    Attributes:
        stand_ins: replacements of parameters by blocks in modules.
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
        """Gather the whole model on every rank for a call."""
        self._called.discard(module)
        with self._blocks.whole_call(module):
            yield

    @contextmanager
    def cut(self, module: torch.nn.Module) -> Iterator[None]:
        """Run a call with this rank's blocks."""
        with self._blocks.cut_call(module), self.inside(module):
            yield

    def inside(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Put blocks into a module inside the `with` block, and in its backward."""
        if torch.is_grad_enabled():
            self._called.add(module)
        return self.stand_ins.inside([module])

    def _in_backward(self) -> AbstractContextManager[None]:
        """Put blocks into called models while autograd's engine runs.

        Activation checkpoints recompute with blocks what they computed with blocks.
        """
        self._blocks.parameters.rest(keep_last=False)
        return self.stand_ins.inside(list(self._called))

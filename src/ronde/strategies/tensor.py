"""`tensor=N`: a model's matrices cut over the ranks of a tensor group."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, final

import torch

from ronde.parallel.expert.features import FeatureExperts
from ronde.patching.patches import Patches
from ronde.plan.cuts import cuts_by_pattern
from ronde.policies.tensor_structure import placements
from ronde.shards.partition import Partition
from ronde.shards.spec import blocks
from ronde.strategies.block_ranks import BlockRanks
from ronde.strategies.blocks import Cutting, ModelBlocks
from ronde.strategies.own_mixtures import OwnMixtures
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.strategy import Strategy
from ronde.strategies.tensor_calls import TensorCalls
from ronde.strategies.uncut_models import UncutModels

__all__ = ["TensorStrategy"]


@final
class TensorStrategy(Strategy):
    """Runs models with blocks of their matrices on this rank.

    Args:
        ranks: process groups; `group` is the tensor group.

    Attributes:
        calls: context managers in which modules hold blocks.
    """

    name = "tensor"

    def __init__(self, parts: SessionParts, ranks: BlockRanks) -> None:
        plan = parts.plan
        item = plan.item("tensor")
        self._uncut = UncutModels(item)
        self._override = cuts_by_pattern(plan.mesh.cuts)
        self._partition, self._degree = Partition(), ranks.group.world_size
        cutting = Cutting(partition=self._partition, find=self._find, item=item)
        found = self._blocks = ModelBlocks(parts, ranks, cutting)
        self.state = found.state
        self._experts = FeatureExperts()
        gathered, within = found.state.gathered, ranks.sequences
        self._mixtures = OwnMixtures(
            parts, item, gathered, together=parts.everybody, sequences=within, in_stages=False
        )
        self.calls = TensorCalls(parts.context, found.comm, found, plan.mesh.sequence_parallel)

    def _find(self, model: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Decide on the parameters of a model; each cut one is a unit."""
        found = placements(model, self._degree, self._override)
        self._uncut.tell(model, found)
        for each in found:
            if each.cut is not None:
                self._partition.decide(each.parameter, blocks(each.cut, each.parameter.shape))
        return [[each.parameter] for each in found if each.cut is not None]

    def install(self, patches: Patches) -> None:
        self._blocks.install(patches)
        self.calls.install(patches)
        self._mixtures.install(patches)
        self._experts.install(patches)

    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        self._mixtures.take(module)
        self._blocks.cut_new(module)
        return self.calls.whole(module) if self._blocks.computes_whole else self.calls.cut(module)

    def around_backward(self) -> AbstractContextManager[object]:
        return self._blocks.around_backward()

    def before_first_step(self, optimizer: Any) -> None:
        """Skip the note: blocks are cut for optimizers of any kind."""

    def notes(self) -> list[str]:
        return self._uncut.notes()

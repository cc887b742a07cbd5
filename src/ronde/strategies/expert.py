"""`expert=N`: the experts of a model's mixtures spread over ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch

from ronde.patching.patches import Patches
from ronde.plan.cuts import cuts_by_pattern
from ronde.policies.expert import expert_specs
from ronde.policies.tensor_structure import placements
from ronde.shards.partition import Partition
from ronde.shards.spec import blocks_of_stage
from ronde.strategies.block_ranks import BlockRanks
from ronde.strategies.blocks import Cutting, ModelBlocks, Reduced
from ronde.strategies.mixture_calls import MixtureCalls, MixtureRanks
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.strategy import Strategy
from ronde.strategies.tensor_calls import TensorCalls

__all__ = ["ExpertStrategy"]


@final
class ExpertStrategy(Strategy):
    """Runs models with some experts of each mixture on this rank.

    Args:
        ranks: process groups; experts are spread over `group`, and each member of `replica_group` has the
            same experts.
        of_mixtures: process groups of a mixture's call.
    """

    name = "expert"

    def __init__(self, parts: SessionParts, ranks: BlockRanks, of_mixtures: MixtureRanks) -> None:
        self._ranks, self._tensor = ranks, of_mixtures.tensor
        self._override = cuts_by_pattern(parts.plan.mesh.cuts)
        self._partition = Partition()
        # An expert's gradient already covers the tokens of its whole group.
        reduces = Reduced.NONE if self._tensor is None else Reduced.COPIES
        item = parts.plan.item("expert")
        cutting = Cutting(partition=self._partition, find=self._find, item=item, reduces=reduces)
        self._blocks = ModelBlocks(parts, ranks, cutting)
        self.state = self._blocks.state
        self._matrices, way = None, parts.plan.mesh.sequence_parallel
        if self._tensor is not None:
            self._matrices = TensorCalls(parts.context, self._tensor, self._blocks, way)
        inside = _nothing if self._matrices is None else self._matrices.inside
        self._mixtures = MixtureCalls(parts, of_mixtures, self._blocks, inside)

    def _find(self, model: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Decide on the parameters of experts; each expert is a unit."""
        units: list[list[torch.Tensor]] = []
        for mixture in self._mixtures.found_in(model):
            self._mixtures.take(mixture)
            for tensor, spec in expert_specs(mixture, self._ranks.group.world_size):
                self._partition.decide(tensor, spec)
            units += mixture.units
        spread = {id(tensor) for members in units for tensor in members}
        return [*units, *([each] for each in self._cut_matrices(model, spread))]

    def _cut_matrices(self, model: torch.nn.Module, spread: Collection[int]) -> Iterator[torch.Tensor]:
        """Decide on the matrices outside of experts."""
        tensor, ranks = self._tensor, self._ranks.group.world_size
        for each in () if tensor is None else placements(model, tensor.world_size, self._override):
            if each.cut is not None and id(each.parameter) not in spread:
                spec = blocks_of_stage(0, 1, each.parameter.shape, ranks=ranks, cut=each.cut)
                self._partition.decide(each.parameter, spec)
                yield each.parameter

    def install(self, patches: Patches) -> None:
        self._blocks.install(patches)
        self._mixtures.install(patches)
        if self._matrices is not None:
            self._matrices.install(patches)

    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        self._blocks.cut_new(module)
        if self._matrices is None:
            return self._blocks.whole_call(module)
        whole = self._blocks.computes_whole or self._mixtures.computes_whole(module)
        return self._matrices.whole(module) if whole else self._matrices.cut(module)

    def around_backward(self) -> AbstractContextManager[object]:
        return self._blocks.around_backward()

    def before_first_step(self, optimizer: Any) -> None:
        """Skip the note: blocks are cut for optimizers of any kind."""

    def notes(self) -> list[str]:
        return self._mixtures.notes()


def _nothing(module: torch.nn.Module) -> AbstractContextManager[None]:
    """Return a no-op context: modules other than experts hold whole parameters."""
    return nullcontext()

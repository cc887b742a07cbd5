"""Who has which block of a parameter of a model cut into stages, each of which a tensor group shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.parallel.stage_division import OfStage, StageDivision, StageRanges
from ronde.parallel.tensor_cut import CutRanges, TensorCut
from ronde.parallel.tensor_structure import Placement, placements

__all__ = ["CutStageDivision", "CutStageRanges"]


class CutStageRanges(CutRanges):
    """`Ranges` of a parameter of which the ranks of one stage have a block each, and the others nothing.

    Ranks are those of all stages, those of a stage's tensor group behind one another.

    Attributes:
        owner: the stage.
        numel: elements of the parameter.
    """

    owner: int
    numel: int

    @classmethod
    def of(cls, cut: TensorCut, owner: int, stages: int, shape: Sequence[int]) -> CutStageRanges:
        blocks, none = tuple(cut.ranges(shape)), (None,) * cut.ranks
        made = cls(cut, owner * none + blocks + (stages - 1 - owner) * none)
        made.owner, made.numel = owner, torch.Size(shape).numel()
        return made

    def shape_of_block(self, shape: Sequence[int], rank: int) -> list[int]:
        return super().shape_of_block(shape, rank) if self[rank] is not None else [0]

    def block(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        return super().block(whole, rank % self.cut.ranks) if self[rank] is not None else whole.new_empty(0)

    def complete(self, comm: Comm, part: torch.Tensor, whole: torch.Tensor) -> None:
        elements = whole.new_empty(whole.numel())
        own = self[comm.rank]
        if own is not None:
            elements[slice(*own)] = part
        comm.share([[] if span is None else [elements[slice(*span)]] for span in self])
        self.cut.put_back(elements, whole)


class CutStageDivision(StageDivision):
    """Remembers, by parameter, its stage, and how it is cut there.

    Args:
        ranks: of the tensor group, which each stage has.
        override, told: as of `TensorDivision`.
    """

    def __init__(
        self,
        stages: int,
        ranks: int,
        override: Mapping[str, str],
        told: Callable[[nn.Module, list[Placement]], object],
    ) -> None:
        super().__init__(stages)
        self._ranks = ranks
        self._override = override
        self._told = told
        # Of the model that is being divided, by id of the parameter.
        self._cuts: dict[int, TensorCut] = {}

    def __call__(self, model: nn.Module) -> list[list[torch.Tensor]]:
        found = placements(model, self._ranks, self._override)
        self._told(model, found)
        self._cuts = {id(each.parameter): each.cut for each in found if each.cut is not None}
        try:
            return super().__call__(model)
        finally:
            self._cuts = {}

    def _of_stage(self, tensor: torch.Tensor, stage: int) -> OfStage:
        cut = self._cuts.get(id(tensor))
        if cut is not None and cut.dim < tensor.dim() and cut.divides(tensor.shape):
            return CutStageRanges.of(cut, stage, self._count, tensor.shape)
        return StageRanges(stage, self._count, tensor.numel(), self._ranks)

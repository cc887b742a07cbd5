"""`tensor=M,pipeline=N`: joins what cuts a model into stages, and each of these over a tensor group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.cut_stage_division import CutStageDivision
from ronde.parallel.stand_ins import StandIns
from ronde.parallel.tensor_cut import CutRanges
from ronde.parallel.tensor_rules import tensor_rules
from ronde.plan import Plan
from ronde.plan.cuts import cuts_by_pattern
from ronde.runtime.block_sharding import BlockRanks
from ronde.runtime.stage_sharding import StageSharding
from ronde.runtime.uncut_models import UncutModels
from ronde.tensor.context import Context

__all__ = ["CutStageSharding"]


class CutStageSharding(StageSharding):
    """What is cut on this rank.

    Args:
        pipeline: of the ranks that have the same blocks of other stages.
        tensor: of those that have other blocks of the same stage.
    """

    def __init__(
        self, plan: Plan, ranks: BlockRanks, note: Callable[[str], None], pipeline: Comm, tensor: Comm
    ) -> None:
        self._uncut = UncutModels(plan.item("tensor"))
        division = CutStageDivision(
            pipeline.world_size, tensor.world_size, cuts_by_pattern(plan.mesh.cuts), self._uncut.tell
        )
        super().__init__(plan, ranks, note, pipeline, division)
        context = Context(comm=tensor, adopt=lambda leaf: None)
        context.weight, context.averages_leaves = 1, False
        self._stand_ins = StandIns(context, tensor_rules(), self._blocks, self._cut.latest)

    def leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        leaf = super().leaf(parameter)
        block = self._blocks.block(parameter)
        if leaf is None or block is None or not leaf.numel() or not isinstance(block.ranges, CutRanges):
            return leaf
        return self._stand_ins.of(parameter)

    def whole(self, output: Any) -> Any:
        return self._stand_ins.whole(output)

    def notes(self) -> list[str]:
        return [*super().notes(), *self._uncut.notes()]

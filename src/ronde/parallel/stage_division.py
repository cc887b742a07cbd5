"""Who has which parameter of a model that is cut into stages: the rank of the stage has all of it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.division import Division, owned_by_main
from ronde.parallel.stages import Stages, cut_into_stages
from ronde.parallel.units import by_kind
from ronde.sync.gradient_hooks import has_hooks
from ronde.sync.gradient_parts import Ranges

__all__ = ["OfStage", "StageDivision", "StageRanges"]


class StageRanges(tuple["tuple[int, int] | None", ...]):
    """`Ranges` of a parameter that the ranks of one stage have, and the others have nothing of.

    Args:
        owner: that stage, of `stages`.
        copies: ranks of a stage, each of which has all elements.

    Attributes:
        owner, copies: as given.
        numel: elements of the parameter.
    """

    owner: int
    copies: int
    numel: int

    def __new__(cls, owner: int, stages: int, numel: int, copies: int = 1) -> StageRanges:
        ranks = range(stages * copies)
        made = super().__new__(cls, ((0, numel) if rank // copies == owner else None for rank in ranks))
        made.owner, made.copies, made.numel = owner, copies, numel
        return made

    def shape_of_block(self, shape: Sequence[int], rank: int) -> Sequence[int]:
        return shape if self[rank] is not None else (0,)

    def block(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        return whole if self[rank] is not None else whole.new_empty(0)

    def complete(self, comm: Comm, part: torch.Tensor, whole: torch.Tensor) -> None:
        if self[comm.rank] is not None:
            whole.view(-1).copy_(part)
        comm.broadcast(whole, self.owner * self.copies)


class OfStage(Protocol):
    """`Ranges` of a parameter that one stage has."""

    @property
    def owner(self) -> int:
        """That stage."""
        ...

    @property
    def numel(self) -> int:
        """Elements of the whole."""
        ...


class StageDivision(Division):
    """Remembers, by parameter, its stage.

    Args:
        stages: of the pipeline.
    """

    def __init__(self, stages: int) -> None:
        super().__init__(stages, owned_by_main)
        self._count = stages
        self._owners: dict[int, tuple[weakref.ref[torch.Tensor], OfStage | None]] = {}
        self._stages: weakref.WeakKeyDictionary[nn.Module, Stages] = weakref.WeakKeyDictionary()

    def __call__(self, model: nn.Module) -> list[list[torch.Tensor]]:
        """The parameters that one stage has, those of one module together."""
        _refuse_sparse(model, self._count)
        stages = self._stages[model] = cut_into_stages(model, self._count, self.owner)
        units: list[list[torch.Tensor]] = []
        for unit in stages.units:
            mine = [each for each in unit.parameters if self._decide(each, stages)]
            units += by_kind(mine)
        for each in stages.shared:
            self._decide(each, stages)
        return units

    def stages(self, model: nn.Module) -> Stages:
        """How a model is cut that has been cut before, or consists of what has been."""
        found = self._stages.get(model)
        if found is None or not found.stands(model):
            found = self._stages[model] = cut_into_stages(model, self._count, self.owner)
        return found

    def owner(self, tensor: torch.Tensor) -> int | None:
        """The stage of a parameter that is decided; -1 for one that all ranks have."""
        ref, ranges = self._owners.get(id(tensor), (None, None))
        if ref is None or ref() is not tensor:
            return None
        return -1 if ranges is None else ranges.owner

    def share(self, tensor: torch.Tensor) -> None:
        """Every rank has this parameter from now on."""
        self._know(tensor, None)
        self._stages.clear()

    def assign(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        return [self.ranges(tensor) for tensor in tensors]

    def ranges(self, tensor: torch.Tensor) -> Ranges | None:
        ref, ranges = self._owners.get(id(tensor), (None, None))
        if ref is None or ranges is None or ref() is not tensor:
            return None
        if math.prod(tensor.shape) != ranges.numel or not tensor.is_contiguous():
            return None
        return cast(Ranges, ranges)

    def _decide(self, tensor: torch.Tensor, stages: Stages) -> bool:
        """Remember the stage of a parameter that is new; whether one rank alone has it."""
        if self.owner(tensor) is None:
            stage = stages.stage_of(tensor)
            fits = tensor.dim() and tensor.numel() and tensor.is_contiguous()
            # A hook of the script's is to be called by all ranks.
            hooked = bool(tensor._backward_hooks) or has_hooks(tensor)
            whole = stage is None or not fits or hooked
            self._know(tensor, None if whole else self._of_stage(tensor, stage or 0))
        return self.owner(tensor) != -1

    def _of_stage(self, tensor: torch.Tensor, stage: int) -> OfStage:
        """Who has which elements of a parameter of a stage."""
        return StageRanges(stage, self._count, tensor.numel())

    def _know(self, tensor: torch.Tensor, ranges: OfStage | None) -> None:
        key = id(tensor)
        if key not in self._owners:
            weakref.finalize(tensor, self._owners.pop, key, None).atexit = False
        self._owners[key] = weakref.ref(tensor), ranges


def _refuse_sparse(model: nn.Module, ranks: int) -> None:
    for name, part in model.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse:
            raise UsageError(
                f"pipeline={ranks} does not carry sparse gradients, which {name or type(part).__name__} has; "
                f"make it with sparse=False, or take a plan without pipeline"
            )

"""Shard specs of parameters over the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ronde.policies.stages import Stages, cut_into_stages
from ronde.shards.dim_cut import DimCut
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec, blocks_of_stage
from ronde.sync.gradient_hooks import has_hooks

__all__ = ["pipeline_specs", "sparse_weights", "stage_of", "stages_of"]


def stages_of(
    model: nn.Module,
    stages: int,
    known: Partition,
    ranks: int = 1,
    chunks: int = 1,
    closed: Collection[int] = (),
    counted: Mapping[nn.Module, float] | None = None,
) -> Stages:
    """Cut a model into stages, keeping parameters that are decided already.

    A part that was cut with another model stays on its stage.

    Args:
        known: specs of parameters that are decided.
        ranks: number of ranks of each stage.
        chunks: runs of units of each stage.
        closed: ids of modules that are not divided.
        counted: operations by module; None where nothing was counted.
    """
    return cut_into_stages(
        model, stages, lambda tensor: stage_of(tensor, known, ranks), chunks, closed, counted
    )


def stage_of(tensor: torch.Tensor, known: Partition, ranks: int = 1) -> int | None:
    """Return the stage of a parameter.

    It is -1 for a parameter on every rank, and None for an undecided one.
    """
    if not known.is_decided(tensor):
        return None
    spec = known.decided(tensor)
    return -1 if spec is None else next(rank for rank, span in enumerate(spec) if span) // ranks


def pipeline_specs(
    stages: Stages,
    count: int,
    known: Partition,
    ranks: int = 1,
    cuts: Mapping[int, DimCut] | None = None,
    whole: Collection[int] = (),
) -> Iterator[tuple[torch.Tensor, ShardSpec | None]]:
    """Yield the spec of each undecided parameter; None for a replicated one.

    Args:
        count: number of stages.
        known: specs of parameters that are decided.
        ranks: number of ranks of each stage.
        cuts: cuts of parameters over the ranks of a stage, by id; other parameters are replicated there.
        whole: ids of parameters that every rank keeps.
    """
    units = [each for unit in stages.units for each in unit.parameters]
    for tensor in [*units, *stages.shared]:
        if known.is_decided(tensor):
            continue
        stage = stages.stage_of(tensor)
        if stage is None or id(tensor) in whole or not _can_be_owned(tensor):
            yield tensor, None
            continue
        cut = (cuts or {}).get(id(tensor))
        if cut is not None and not (cut.dim < tensor.dim() and cut.divides(tensor.shape)):
            cut = None
        yield tensor, blocks_of_stage(stage, count, tensor.shape, ranks=ranks, cut=cut)


def _can_be_owned(tensor: Any) -> bool:
    """Return whether a single stage may own a parameter.

    It may not if the script has hooks on the parameter: all ranks call these.
    """
    hooked = bool(tensor._backward_hooks) or has_hooks(tensor)
    return bool(tensor.dim() and tensor.numel()) and tensor.is_contiguous() and not hooked


def sparse_weights(model: nn.Module) -> list[torch.Tensor]:
    """Return the weights of embeddings with sparse gradients, each once.

    A block's gradient is dense, so every rank keeps these weights, as under `tensor=N`.
    """
    tables = [part for part in model.modules() if isinstance(part, (nn.Embedding, nn.EmbeddingBag))]
    return list({id(part.weight): part.weight for part in tables if part.sparse}.values())

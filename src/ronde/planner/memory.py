"""Peak bytes of the worst rank, by kind, exact for each pipeline stage.

Sources: micro-batches in flight and activations are Megatron-LM's (Narayanan et al. 2021, Korthikanti et al.
2022), states ZeRO's (Rajbhandari et al. 2020); gathered parameters of ronde are in docs/reference/memory.md.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ronde.planner.attended import gathered_again, gathered_bytes
from ronde.planner.candidates import Candidates
from ronde.planner.graph import CostGraph, ModelBlock
from ronde.planner.software import Software

__all__ = ["KINDS", "MemoryUse", "held", "held_by", "in_flight", "stage_layers", "stage_parameters", "states"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KINDS = ("parameters", "gradients", "optimizer", "gathered", "activations", "workspace")


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the worst rank, in arrays with an entry per candidate.

    The attributes are KINDS; `stage` is that rank's stage.
    """

    parameters: Floats
    gradients: Floats
    optimizer: Floats
    gathered: Floats
    activations: Floats
    workspace: Floats
    stage: Ints

    @property
    def total(self) -> Floats:
        parts = (getattr(self, kind) for kind in KINDS)
        return sum(parts, np.zeros_like(self.parameters))


def stage_layers(layers: int, pipeline: Ints, stage: Ints) -> Ints:
    """Return the layers of a stage; a remainder goes to the first stages.

    >>> stage_layers(7, np.array([2, 2]), np.array([0, 1])).tolist()
    [4, 3]
    """
    return layers // pipeline + (stage < layers % pipeline)


def in_flight(candidates: Candidates, stage: Ints) -> Floats:
    """Return how many micro-batches' activations a stage keeps at once.

    The unit is all layers of the stage.

    `gpipe` m; `1f1b` min(p - stage, m); `zero-bubble` (ZB-H1) min(p, m); `interleaved` the chunks of its
    warm-up, and one.
    """
    p, m, v = candidates.pipeline, candidates.micro_batches, candidates.chunks
    one = np.minimum(np.where(candidates.schedule == 3, p, p - stage), m)
    chunks = np.minimum((p - stage - 1) * 2 + (v - 1) * p + 1, m * v)
    found = np.select([candidates.schedule == 0, candidates.schedule == 2], [m, chunks / v], one)
    return np.where(p > 1, found, 1.0)


def states(
    graph: CostGraph, candidates: Candidates, software: Software, stage: Ints
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return a stage's bytes of parameters, gradients and optimizer state, and parameter count.

    Ranks that have the same experts are fewer than those that have the same of all else.
    """
    dense, routed = stage_parameters(graph, candidates, stage)
    ranks = candidates.data * candidates.context
    placement = candidates.placement

    def held(divided: NDArray[np.bool_]) -> Floats:
        return dense / np.where(divided, ranks, 1) + routed / np.where(divided, ranks / candidates.expert, 1)

    optimizer = held((placement >= 1) & (placement <= 3)) * software.optimizer
    gradients = held((placement >= 2) & (placement <= 3)) * software.gradient
    parameters = held(placement == 3) * software.parameter
    return parameters, gradients, optimizer, dense + routed


def held(graph: CostGraph, candidates: Candidates, software: Software, samples: Floats) -> MemoryUse:
    """Return the peak of the worst rank.

    Args:
        samples: samples of a micro-batch on a rank.
    """
    p = candidates.pipeline
    stages = [np.zeros_like(p), np.minimum(np.ones_like(p), p - 1), p - 1]
    found = [held_by(graph, candidates, software, samples, stage) for stage in stages]
    totals = np.stack([each.total for each in found])
    worst = totals.argmax(axis=0)
    names = (*KINDS, "stage")
    return MemoryUse(*(np.choose(worst, [getattr(each, name) for each in found]) for name in names))


def stage_parameters(graph: CostGraph, candidates: Candidates, stage: Ints) -> tuple[Floats, Floats]:
    """Return the parameters of a rank of a stage, and of its experts."""
    t = candidates.tensor
    p = candidates.pipeline
    layers = stage_layers(graph.layers, p, stage)

    numbers = layers * _whole(graph.block, t)
    first, last = stage == 0, stage == p - 1
    numbers = numbers + first * _whole(graph.first, t) + last * _whole(graph.last, t)
    # One rank that is first and last holds a shared embedding once.
    routed = layers * graph.block.parameters_routed / (candidates.expert * t)
    return numbers - (first & last) * graph.tied / t, routed


def _whole(block: ModelBlock, tensor: Ints) -> Floats:
    """Return the parameters of a gathered unit, without its experts."""
    return block.parameters_cut / tensor + block.parameters_whole


def _saved(block: ModelBlock, candidates: Candidates, software: Software, samples: Floats) -> Floats:
    """Return the bytes that a block keeps for backward of one micro-batch, without recomputation."""
    t = candidates.tensor
    whole = t if software.sequence_parallel else 1
    values = block.saved_cut / t + block.saved_whole / whole
    masks = block.masks_cut / t + block.masks_whole / whole
    if block.attention is not None:
        heads = t if block.attention.divided else 1
        values = values + block.attention.saved / heads
        masks = masks + block.attention.masks / heads
    kept = (values * software.itemsize + masks) * samples / candidates.context
    if block.attention is None:
        return kept
    gathered = gathered_bytes(block.attention, candidates, software, samples)
    return kept + np.where(gathered_again(block.attention, software, samples), 0.0, gathered)


def _selective(block: ModelBlock, candidates: Candidates, software: Software, samples: Floats) -> Floats:
    """Return the bytes kept under `recompute=selective`."""
    t = candidates.tensor
    if software.keeps_results:
        kept = (block.results / t + block.output) * software.itemsize * samples / candidates.context
        return np.minimum(kept, _saved(block, candidates, software, samples))
    if block.attention is None:
        return _saved(block, candidates, software, samples)
    without = dataclasses.replace(block, attention=None)
    return _saved(without, candidates, software, samples)


def held_by(
    graph: CostGraph, candidates: Candidates, software: Software, samples: Floats, stage: Ints
) -> MemoryUse:
    """Return the peak of a rank of one stage; arguments as in `held`."""
    p, t = candidates.pipeline, candidates.tensor
    first, last = stage == 0, stage == p - 1
    parameters, gradients, optimizer, numbers = states(graph, candidates, software, stage)
    layers = stage_layers(graph.layers, p, stage)
    flight = in_flight(candidates, stage)
    whole = _saved(graph.block, candidates, software, samples)
    selective = _selective(graph.block, candidates, software, samples)
    sequence = t if software.sequence_parallel else 1
    inputs = graph.block.output * software.itemsize * samples / (candidates.context * sequence)
    kept = np.choose(candidates.recompute, [whole, selective, inputs])
    again = np.choose(candidates.recompute, [np.zeros_like(whole), whole - selective, whole])
    ends = first * _saved(graph.first, candidates, software, samples) * flight
    # The micro-batches of one batch give one output: the loss keeps all of it, and gradients are summed in
    # buffers of their own.
    pieces = software.pieces_again * (candidates.micro_batches > 1) * (p == 1)
    together = pieces.astype(bool) | ((candidates.schedule == 0) & (p > 1))
    whole_batch = np.where(together, candidates.micro_batches, 1)
    ends = ends + last * _saved(graph.last, candidates, software, samples) * whole_batch + pieces * gradients
    activations = kept * layers * flight + np.where(layers > 0, again, 0) + ends
    activations = activations + np.where(candidates.placement >= 3, 0.0, numbers * software.copy)
    layer = _whole(graph.block, t) + graph.block.parameters_routed / (candidates.expert * t)
    ends = np.maximum(_whole(graph.last, t) * last, _whole(graph.first, t) * first)
    largest = np.maximum(layer, ends)
    units = 2 * largest * (software.parameter + software.copy)
    # Buckets of sharded gradients fill while backward frees activations: they do not add to the peak.
    gathered = np.where(candidates.placement >= 3, units, 0.0)
    fixed = software.fixed + last * ~first * graph.tied / t * software.tied_copy
    return MemoryUse(
        parameters, gradients, optimizer, gathered, activations, np.broadcast_to(fixed, numbers.shape), stage
    )

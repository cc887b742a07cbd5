"""Enumerates all legal candidates for a number of devices, as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ronde.plan import Plan
from ronde.plan.schedule import CHUNKS
from ronde.planner.candidates import PLACEMENTS, RECOMPUTES, SCHEDULES, Candidates
from ronde.planner.graph import CostGraph

__all__ = ["Fixed", "enumerate_candidates", "fixed_by"]

_GPIPE = SCHEDULES.index("gpipe")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """Values that the user has fixed; None where the search is free."""

    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    micro_batches: int | None = None
    placement: int | None = None
    recompute: int | None = None
    schedule: int | None = None


def fixed_by(plan: Plan, keys: Collection[str]) -> Fixed:
    """Return the values that a plan fixes, among the keys that the user named."""

    def asked(name: str) -> int | None:
        value = plan.value(name)
        return value if name in keys and value is not None else None

    placement = PLACEMENTS.index(plan.state.placement) if plan.state.placement in PLACEMENTS else 0
    schedule = plan.compute.schedule
    return Fixed(
        data=asked("data"),
        tensor=asked("tensor"),
        pipeline=asked("pipeline"),
        context=asked("context"),
        expert=asked("expert"),
        micro_batches=asked("micro-batches"),
        placement=placement if "state" in keys else None,
        recompute=RECOMPUTES.index(plan.compute.recompute) if "recompute" in keys else None,
        schedule=SCHEDULES.index(schedule) if schedule is not None else None,
    )


def enumerate_candidates(graph: CostGraph, devices: int, fixed: Fixed, node: int = 8) -> Candidates:
    """Enumerate every legal combination of degrees, micro-batches, placement, recompute and schedule.

    A pipeline has no more stages than layers; tensor parallelism divides heads and lies in whole parts of
    nodes; context parallelism is a power of two; each rank has at least one sample of each micro-batch. The
    number of micro-batches is a power of two below the samples of a rank, or that number itself.

    Args:
        node: devices of a node.
    """
    heads: list[tuple[int, ...]] = []
    tails: list[np.ndarray] = []
    # Degrees of context and experts have the same grid of all else.
    grids: dict[tuple[tuple[int, ...], bool, int], np.ndarray] = {}
    for tensor, pipeline, context, expert in _degrees(graph, devices, fixed, node):
        data = devices // (tensor * pipeline * context)
        if data > graph.batch or (fixed.data is not None and fixed.data != data):
            continue
        samples = -(-graph.batch // data)
        micros = [each for each in _only(fixed.micro_batches, _pieces(samples)) if each <= samples]
        if not micros:
            continue
        alone = data * context == 1
        key = (tuple(micros), alone, pipeline)
        if key not in grids:
            grids[key] = _grid(graph, fixed, micros, alone, pipeline)
        heads.append((data, tensor, pipeline, context, expert))
        tails.append(grids[key])
    if not heads:
        return Candidates.of([])
    first = np.repeat(np.array(heads, dtype=np.int64).T, [tail.shape[1] for tail in tails], axis=1)
    return Candidates(*first, *np.hstack(tails))


def _grid(graph: CostGraph, fixed: Fixed, micros: Sequence[int], alone: bool, pipeline: int) -> np.ndarray:
    """Return rows of micro-batches, states, recomputation, schedules and chunks.

    Args:
        alone: whether no other rank has the same parameters.
    """
    states = _only(fixed.placement, [0] if alone else range(4))
    recomputes = _only(fixed.recompute, range(3) if graph.kernels == "eager" else [0])
    schedules = np.array(list(_schedules(graph, pipeline, fixed)), dtype=np.int64).reshape(-1, 2)
    grid = np.array(np.meshgrid(micros, states, recomputes, np.arange(len(schedules)), indexing="ij"))
    flat = grid.reshape(4, -1).astype(np.int64)
    found = np.vstack([flat[:3], schedules[flat[3]].T])
    whole = (found[3] != 2) | (found[0] % pipeline == 0)
    kept = (found[3] != 3) | (found[2] == 0)  # recomputed activations cannot have a split backward
    return found[:, whole & kept]


def _only(asked: int | None, every: Collection[int]) -> list[int]:
    return list(every) if asked is None else [asked]


def _pieces(samples: int) -> list[int]:
    found = [1]
    while found[-1] * 2 < samples:
        found.append(found[-1] * 2)
    return sorted({*found, samples})


def _degrees(graph: CostGraph, devices: int, fixed: Fixed, node: int) -> Iterator[tuple[int, int, int, int]]:
    tensors = [
        each
        for each in _divisors(devices)
        if (graph.heads and graph.heads % each == 0 and (node % each == 0 or each % node == 0)) or each == 1
    ]
    pipelines = [each for each in _divisors(devices) if each <= max(1, graph.layers)]
    contexts = [1, 2, 4, 8] if graph.heads and graph.tokens >= 4096 else [1]
    if graph.kernels != "eager":
        # A model that the script compiles is neither cut nor recomputed.
        tensors = pipelines = contexts = [1]
    for tensor in _only(fixed.tensor, tensors):
        for pipeline in _only(fixed.pipeline, pipelines):
            for context in _only(fixed.context, contexts):
                if devices % (tensor * pipeline * context):
                    continue
                data = devices // (tensor * pipeline * context)
                experts = [each for each in _divisors(graph.experts) if data * context % each == 0]
                for expert in _only(fixed.expert, experts):
                    yield tensor, pipeline, context, expert


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _schedules(graph: CostGraph, pipeline: int, fixed: Fixed) -> Iterator[tuple[int, int]]:
    """Yield the schedules for `pipeline` stages, each with its number of chunks."""
    if pipeline == 1:
        yield 1, 1
        return
    # Backward begins with the loss, which the script has when all micro-batches have come through.
    possible = [_GPIPE] if graph.loss_apart else range(len(SCHEDULES))
    for schedule in _only(fixed.schedule, possible):
        if schedule != 2:
            yield schedule, 1
        elif graph.layers >= CHUNKS * pipeline:
            yield schedule, CHUNKS

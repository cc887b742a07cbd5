"""Evaluates candidates in closed form, and some of them by simulated events."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ronde.plan import Plan
from ronde.plan.compute import Schedule
from ronde.planner.candidates import SCHEDULES, Candidates, Point
from ronde.planner.cluster import Cluster
from ronde.planner.graph import CostGraph
from ronde.planner.memory import MemoryUse, held, stage_layers
from ronde.planner.simulator import PipelineTimeline, simulate
from ronde.planner.software import Software, software_of
from ronde.planner.step import StageSeconds, StepTime, samples_of, stages, step
from ronde.planner.traffic import USUAL, PlanTraffic, traffic_of

__all__ = ["Setting", "memory_of", "seconds_of", "setting_of", "simulated", "timeline_of"]

Floats = NDArray[np.float64]

# Micro-batches for each stage that are simulated; the rest repeats.
_MICROS = 2
# Sums of many parts differ by their order: a bound counts where it is above by more than this share.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Inputs that all candidates of a question share."""

    cluster: Cluster
    graph: CostGraph
    software: Software
    algorithm: str = "auto"
    traffic: PlanTraffic = USUAL


def setting_of(cluster: Cluster, graph: CostGraph, plan: Plan) -> Setting:
    """Return the inputs of a plan on a cluster."""
    return Setting(
        cluster=cluster,
        graph=graph,
        software=software_of(plan, graph, cluster),
        algorithm=plan.communication.algorithm,
        traffic=traffic_of(plan),
    )


def memory_of(setting: Setting, candidates: Candidates) -> MemoryUse:
    """Return the bytes of the worst rank."""
    samples = samples_of(setting.graph, candidates)
    return held(setting.graph, candidates, setting.software, samples)


def seconds_of(setting: Setting, candidates: Candidates) -> StepTime:
    """Return the seconds of a step in closed form."""
    return step(
        setting.cluster, setting.graph, candidates, setting.software, setting.algorithm, setting.traffic
    )


def timeline_of(setting: Setting, point: Point, micros: int | None = None) -> PipelineTimeline:
    """Simulate all stages' work on `micros` micro-batches, all by default.

    Each stage has its own number of layers.
    """
    each = stages(setting.cluster, setting.graph, Candidates.one(point), setting.software)
    schedule, forward, backward, chunks, send, busy = _inputs(setting, point, each, 0)
    return simulate(
        schedule, forward, backward, micros or point.micro_batches, chunks=chunks, send=send, busy=busy
    )


def _inputs(
    setting: Setting, point: Point, each: StageSeconds, place: int
) -> tuple[Schedule, tuple[float, ...], tuple[float, ...], int, float, float]:
    """Return one candidate's arguments of `_pipeline_seconds`, but for micro-batches."""
    factor = setting.cluster.factor
    forward, backward = (
        tuple(factor * seconds for seconds in _every_stage(setting.graph, point, line[:, place]))
        for line in (each.forward, each.backward)
    )
    send = float(each.send[place]) * factor
    near = point.tensor * point.context * point.data < setting.cluster.node_size
    return SCHEDULES[point.schedule], forward, backward, point.chunks, send, 0.0 if near else send


@functools.lru_cache(maxsize=64)
def _pipeline_seconds(
    schedule: Schedule,
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    chunks: int,
    send: float,
    busy: float,
    micros: int,
) -> float:
    """Return the seconds of a pipeline. Plans that divide state differently have the same one."""
    ran = simulate(schedule, forward, backward, micros, chunks=chunks, send=send, busy=busy, drawn=False)
    return ran.seconds


def _every_stage(graph: CostGraph, point: Point, seconds: Floats) -> list[float]:
    """Return seconds of a micro-batch on every stage.

    Args:
        seconds: seconds of the first, a middle and the last stage.
    """
    p = point.pipeline
    sizes = np.array([p])
    counts = [int(stage_layers(graph.layers, sizes, np.array([stage]))[0]) for stage in range(p)]
    first, middle, last = (float(value) for value in seconds)
    layer = middle / max(counts[min(1, p - 1)], 1)
    line = [layer * count for count in counts]
    line[0], line[-1] = first, last
    return line


def simulated(
    setting: Setting, candidates: Candidates, closed: StepTime, quickest: int | None = None
) -> Floats:
    """Return the seconds of steps with pipelines simulated by events.

    Everything else comes from the closed form, `closed`.

    Args:
        quickest: number of candidates of which the seconds are needed; others may be inf. None for all.
    """
    each = stages(setting.cluster, setting.graph, candidates, setting.software)
    asked = len(candidates) if quickest is None else min(quickest, len(candidates))
    found = np.full(len(candidates), np.inf)
    for place in np.argsort(closed.total, kind="stable").tolist():
        limit = float(np.partition(found, asked - 1)[asked - 1])
        found[place] = _simulated(setting, candidates.point(place), each, closed, place, limit)
    return found


def _simulated(
    setting: Setting, point: Point, each: StageSeconds, closed: StepTime, place: int, limit: float
) -> float:
    """Return the seconds of the candidate at `place`.

    They are inf where a lower bound is above `limit`.
    """
    if point.pipeline == 1 or setting.cluster.crowd > 1:
        return float(closed.total[place])
    group = point.pipeline
    few = min(point.micro_batches, max(_MICROS * group, group + 1))
    if point.schedule == 2:
        few = min(point.micro_batches, -(-few // group) * group)
    body = float(closed.compute[place] + closed.exchange[place] + closed.host[place])
    rest = (point.micro_batches - few) * body / point.micro_batches
    once = float(closed.gradients[place] + closed.optimizer[place] + closed.loader[place])
    inputs = _inputs(setting, point, each, place)
    _, forward, backward, chunks, *_ = inputs
    if _least(forward, backward, chunks, few) + rest + once > limit * (1 + _ROUNDING):
        return np.inf
    return _pipeline_seconds(*inputs, few) + rest + once


def _least(forward: Sequence[float], backward: Sequence[float], chunks: int, micros: int) -> float:
    """Return a lower bound of a pipeline's seconds.

    A stage begins behind one chunk of a micro-batch on each stage before it, and then has all its own work.
    """
    before = itertools.accumulate(forward, initial=0.0)
    works = zip(before, forward, backward, strict=False)
    return max(start / chunks + micros * (there + back) for start, there, back in works)

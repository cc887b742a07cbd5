"""Evaluates candidates in closed form, and one of them by simulated events."""

from __future__ import annotations

import dataclasses
import functools

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
    schedule, forward, backward, chunks, send, busy = _inputs(setting, point)
    return simulate(
        schedule, forward, backward, micros or point.micro_batches, chunks=chunks, send=send, busy=busy
    )


def _inputs(
    setting: Setting, point: Point
) -> tuple[Schedule, tuple[float, ...], tuple[float, ...], int, float, float]:
    """Return the schedule, seconds of all stages, chunks, send, and busy link."""
    one = Candidates.one(point)
    factor = setting.cluster.factor
    each = stages(setting.cluster, setting.graph, one, setting.software)
    forward, backward = (
        tuple(factor * seconds for seconds in line) for line in _every_stage(setting.graph, point, each)
    )
    send = float(each.send[0]) * factor
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


def _every_stage(graph: CostGraph, point: Point, each: StageSeconds) -> tuple[list[float], list[float]]:
    """Return seconds of a micro-batch on every stage.

    They follow from the first, a middle and the last stage.
    """
    p = point.pipeline
    sizes = np.array([p])
    counts = [int(stage_layers(graph.layers, sizes, np.array([stage]))[0]) for stage in range(p)]
    found: list[list[float]] = []
    for seconds in (each.forward[:, 0], each.backward[:, 0]):
        first, middle, last = (float(value) for value in seconds)
        layer = middle / max(counts[min(1, p - 1)], 1)
        line = [layer * count for count in counts]
        line[0], line[-1] = first, last
        found.append(line)
    return found[0], found[1]


def simulated(setting: Setting, point: Point, closed: StepTime, place: int) -> float:
    """Return the seconds of a step with its pipeline simulated by events.

    Everything else comes from the closed form, `closed`.
    """
    if point.pipeline == 1 or setting.cluster.crowd > 1:
        return float(closed.total[place])
    group = point.pipeline
    few = min(point.micro_batches, max(_MICROS * group, group + 1))
    if point.schedule == 2:
        few = min(point.micro_batches, -(-few // group) * group)
    ran = _pipeline_seconds(*_inputs(setting, point), few)
    body = float(closed.compute[place] + closed.exchange[place] + closed.host[place])
    rest = (point.micro_batches - few) * body / point.micro_batches
    return ran + rest + float(closed.gradients[place] + closed.optimizer[place] + closed.loader[place])

"""The pipeline timeline in pictures of an answer: the best plan's first micro-batches."""

from __future__ import annotations

from ronde.plan import expand
from ronde.planner.answer import Answer
from ronde.planner.candidates import SCHEDULES, point_of
from ronde.planner.cluster import Cluster
from ronde.planner.estimate import setting_of, timeline_of
from ronde.planner.graph import CostGraph
from ronde.planner.simulator import PipelineTimeline

__all__ = ["timeline_of_best"]


def timeline_of_best(answer: Answer, graph: CostGraph, cluster: Cluster, micros: int) -> PipelineTimeline:
    """Return the timeline of the best plan's first `micros` micro-batches.

    They are rounded up to whole rounds of its stages.
    """
    plan = expand(answer.choices[0].plan)
    point = point_of(answer.choices[0].plan, answer.devices)
    few = min(point.micro_batches, max(micros, 2 * point.pipeline))
    if SCHEDULES[point.schedule] == "interleaved":
        few = -(-few // point.pipeline) * point.pipeline
    return timeline_of(setting_of(cluster, graph, plan), point, few)

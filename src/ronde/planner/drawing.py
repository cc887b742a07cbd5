"""The pipeline timeline in pictures of an answer: the best plan's first micro-batches."""

from __future__ import annotations

from ronde.plan import expand
from ronde.plan.schedule import CHUNKS
from ronde.planner.answer import Answer
from ronde.planner.candidates import PLACEMENTS, RECOMPUTES, SCHEDULES, Point
from ronde.planner.cluster import Cluster
from ronde.planner.estimate import Setting, timeline_of
from ronde.planner.graph import CostGraph
from ronde.planner.simulator import PipelineTimeline
from ronde.planner.software import software_of

__all__ = ["point_of", "timeline_of_best"]


def point_of(plan_text: str, devices: int) -> Point:
    """Return the candidate that a plan names for this number of devices."""
    plan = expand(plan_text).for_ranks(devices)
    mesh, schedule = plan.mesh, plan.compute.schedule or "1f1b"
    placement = plan.state.placement
    return Point(
        data=mesh.data or devices // mesh.model_ranks,
        tensor=mesh.tensor,
        pipeline=mesh.pipeline,
        context=mesh.context,
        expert=mesh.expert,
        micro_batches=plan.compute.micro_batches,
        placement=PLACEMENTS.index(placement) if placement in PLACEMENTS else 0,
        recompute=RECOMPUTES.index(plan.compute.recompute),
        schedule=SCHEDULES.index(schedule),
        chunks=CHUNKS if schedule == "interleaved" else 1,
    )


def timeline_of_best(answer: Answer, graph: CostGraph, cluster: Cluster, micros: int) -> PipelineTimeline:
    """Return the timeline of the best plan's first `micros` micro-batches.

    They are rounded up to whole rounds of its stages.
    """
    plan = expand(answer.choices[0].plan)
    point = point_of(answer.choices[0].plan, answer.devices)
    software = software_of(plan, graph, cluster)
    few = min(point.micro_batches, max(micros, 2 * point.pipeline))
    if SCHEDULES[point.schedule] == "interleaved":
        few = -(-few // point.pipeline) * point.pipeline
    return timeline_of(Setting(cluster=cluster, graph=graph, software=software), point, few)

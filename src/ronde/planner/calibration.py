"""Calibrates the model by one measured run: software differs by a near-constant factor."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ronde.errors import UsageError
from ronde.plan import expand
from ronde.planner.candidates import Candidates
from ronde.planner.cluster import Cluster
from ronde.planner.drawing import point_of
from ronde.planner.estimate import Setting, seconds_of
from ronde.planner.graph import CostGraph
from ronde.planner.software import ronde_software
from ronde.planner.traffic import traffic_of
from ronde.trace.run_directory import RunDirectory
from ronde.trace.summary import RankSummary, read_summary

__all__ = ["calibrated", "predicted_seconds"]

_FEWEST_STEPS = 3


def calibrated(cluster: Cluster, graph: CostGraph, run: Path) -> Cluster:
    """Return the cluster with the factor that makes predictions match a measured run.

    The run is of the same script on that cluster.

    Raises:
        UsageError: the folder has no account of a run, or the run made too few steps.
    """
    summary = read_summary(RunDirectory(path=run, run_id="").summary(0))
    if summary is None:
        raise UsageError(
            f"--calibrate {run} has no account of a run (rank-0.summary.json); give the directory of a run "
            "that has ended, as by ronde run --run-dir DIR [R815]"
        )
    if not summary.steps_per_second or summary.steps < _FEWEST_STEPS:
        raise UsageError(
            f"--calibrate {run}: that run made {summary.steps} optimizer steps, too few to time; let it make "
            f"{_FEWEST_STEPS} at least [R815]"
        )
    measured = 1 / summary.steps_per_second
    factor = measured / predicted_seconds(cluster, graph, summary)
    told = f"{run} ({summary.plan or 'ddp'}, {summary.world_size} ranks, {measured:.4g} s a step)"
    return dataclasses.replace(cluster, factor=factor, calibration=told)


def predicted_seconds(cluster: Cluster, graph: CostGraph, summary: RankSummary) -> float:
    """Return the model's seconds of a step of that run."""
    plan = expand(*([summary.plan] if summary.plan else []))
    software = ronde_software(plan.compute.precision, graph.slots, graph.itemsize, float(plan.bucket_bytes))
    setting = Setting(
        cluster=cluster.resized(summary.world_size),
        graph=graph,
        software=software,
        algorithm=plan.communication.algorithm,
        traffic=traffic_of(plan),
    )
    one = Candidates.one(point_of(str(plan), summary.world_size))
    return float(seconds_of(setting, one).total[0])

"""Calibrate the cost model by measured runs, the host's time apart from the device's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ronde.errors import UsageError
from ronde.plan import expand
from ronde.planner.candidates import Candidates, point_of
from ronde.planner.cluster import Cluster
from ronde.planner.estimate import seconds_of, setting_of
from ronde.planner.graph import CostGraph
from ronde.trace.run_directory import RunDirectory
from ronde.trace.summary import RankSummary, read_summary

__all__ = ["calibrated", "predicted_seconds"]

_FEWEST_STEPS = 3
# Ratios of the host's factor to the device's that are tried: one changes by 10 at most, in steps of 3 %.
_RATIOS = np.exp(np.linspace(-np.log(10), np.log(10), 155))
# A ratio other than 1 must explain at least this much more of the logarithm of a run's time.
_DOUBT = 1e-3


def calibrated(cluster: Cluster, graph: CostGraph, runs: Sequence[Path]) -> Cluster:
    """Return the cluster with the factors that make predictions match measured runs.

    One run sets one factor of all times. Several, some of which wait for the host more than others, set the
    host's apart from the device's.

    Args:
        runs: directories of runs of the script on that cluster.

    Raises:
        UsageError: a folder has no account of a run, or the run made too few steps.
    """
    summaries = [_summary(run) for run in runs]
    measured = -np.log(np.array([each.steps_per_second for each in summaries], dtype=float))
    hosts = _RATIOS if len(runs) > 1 and cluster.slowest.host else np.ones(1)
    predicted = [
        [predicted_seconds(_with_host(cluster, float(host)), graph, each) for each in summaries]
        for host in hosts
    ]
    off = measured - np.log(np.array(predicted))
    spread = off.var(axis=1) + _DOUBT * np.abs(np.log(hosts))
    best = int(spread.argmin())
    factor = float(np.exp(off[best].mean()))
    told = "; ".join(
        f"{run} ({each.plan or 'ddp'}, {each.world_size} ranks, {np.exp(seconds):.4g} s a step)"
        for run, each, seconds in zip(runs, summaries, measured, strict=True)
    )
    found = _with_host(cluster, float(hosts[best]))
    return dataclasses.replace(
        found, factor=factor, host_factor=factor * float(hosts[best]), calibration=told
    )


def _summary(run: Path) -> RankSummary:
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
    return summary


def _with_host(cluster: Cluster, times: float) -> Cluster:
    """Return the cluster with a multiple of the host's seconds for each operation."""
    return cluster.with_devices(lambda device: dataclasses.replace(device, host=device.host * times))


def predicted_seconds(cluster: Cluster, graph: CostGraph, summary: RankSummary) -> float:
    """Return the model's seconds of a step of that run."""
    plan = expand(*([summary.plan] if summary.plan else []))
    setting = setting_of(cluster.resized(summary.world_size), graph, plan)
    one = Candidates.one(point_of(str(plan), summary.world_size))
    return float(seconds_of(setting, one).total[0])

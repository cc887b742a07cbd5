"""Measures this host as a cluster, on demand."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ronde.cluster.cores import available_cores
from ronde.errors import UsageError
from ronde.planner.cluster import Cluster, Group
from ronde.planner.device import Device
from ronde.planner.fitting import fit_collective, fit_gemm
from ronde.planner.link import Constants, Link

__all__ = ["host_of", "measured_host", "measurements"]

_TIMEOUT = 120
_UNCERTAIN = 0.15
_MEASURED = "measured on this host"


def measured_host(ranks: int | None = None) -> Cluster:
    """Measure this host with `ranks` ranks, by default one for each core.

    Raises:
        UsageError: the measurement failed; the message has its last line.
    """
    return host_of(measurements(ranks or available_cores()))


def measurements(count: int) -> dict[str, Any]:
    """Measure this host by `count` ranks together; errors as `measured_host`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ronde.runtime.costs.host", folder, str(count)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"this host cannot be measured by {count} ranks in {_TIMEOUT} s, it does other work; try "
                "again when it is quiet, or give a preset or a file by --cluster [R816]"
            ) from None
        found = Path(folder) / "host.json"
        if done.returncode or not found.exists():
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise UsageError(
                f"this host cannot be measured ({last}); give a preset or a file by --cluster [R816]"
            )
        return json.loads(found.read_text())


def host_of(measured: Mapping[str, Any]) -> Cluster:
    """Return the cluster with the measured constants."""
    products = np.array(measured["products"], dtype=float)
    floor, flops, rate = fit_gemm(*products.T, itemsize=4)
    ranks = measured["ranks"]
    # Seconds of a core, which several ranks may share.
    crowd = max(1.0, ranks / measured["cores"])
    floor, flops, rate, copy = floor * crowd, flops / crowd, rate / crowd, measured["copy"] / crowd
    device = Device(
        name="a rank's share of the processor",
        memory=measured["memory"] / ranks,
        peak={"fp32": flops},
        bandwidth=copy,
        gemm_floor=floor,
        gemm_efficiency=1.0,
        gemm_bandwidth=max(rate / copy, 1e-3),
        attention_efficiency=min(1.0, measured["attention"] / crowd / flops),
        copy_efficiency=1.0,
        launch=measured["launch"] * crowd,
        sustained=1.0,
    )
    sums = np.array(measured["sums"], dtype=float).reshape(-1, 2)
    usual = Constants(alpha=1e-5, beta=copy)
    if len(sums):
        usual = fit_collective(2 * (ranks - 1) / ranks, sums[:, 0], sums[:, 1])
    link = Link(usual=usual)
    return Cluster(
        name="this-host",
        groups=(Group(nodes=1, devices=ranks, device=device),),
        node=link,
        network=link,
        loader=None,
        reserved=1.0,
        context=0.0,
        backend="gloo",
        sources={"groups": _MEASURED, "node": _MEASURED},
        uncertainty=_UNCERTAIN,
        batches=(1.0, float("inf")),
        crowd=crowd,
    )

"""Finds a plan's walls (bottlenecks): the step's time without each of them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from ronde.planner.candidates import Candidates
from ronde.planner.cluster import Cluster
from ronde.planner.estimate import Setting, seconds_of
from ronde.planner.link import Constants, Link

__all__ = ["WALLS", "Wall", "walls"]

WALLS = ("compute", "memory", "communication", "host", "bubble", "data")
"""The walls by name."""

Floats = NDArray[np.float64]

_FREE = Link(usual=Constants(alpha=0.0, beta=math.inf))


@dataclasses.dataclass(frozen=True, slots=True)
class Wall:
    """A wall, and the share of the step that its removal saves."""

    name: str
    gain: float


def walls(setting: Setting, candidates: Candidates, best_without_memory: float) -> list[list[Wall]]:
    """Return all walls of each candidate, the one of the largest gain first.

    Args:
        best_without_memory: seconds of the best plan were memory infinite.
    """
    usual = seconds_of(setting, candidates)
    total = usual.total

    def seconds(cluster: Cluster) -> Floats:
        return seconds_of(dataclasses.replace(setting, cluster=cluster), candidates).total

    cluster = setting.cluster
    without = {
        "compute": seconds(_ideal_kernels(cluster)),
        "memory": np.minimum(total, best_without_memory),
        "communication": seconds(dataclasses.replace(cluster, node=_FREE, network=_FREE)),
        "host": seconds(cluster.with_devices(lambda device: dataclasses.replace(device, host=0.0))),
        "bubble": total - usual.bubble,
        "data": seconds(dataclasses.replace(cluster, loader=None)),
    }
    gains = {name: np.maximum(0.0, 1 - without[name] / total).tolist() for name in WALLS}
    every = ([Wall(name, gains[name][place]) for name in WALLS] for place in range(len(candidates)))
    return [sorted(found, key=lambda wall: -wall.gain) for found in every]


def _ideal_kernels(cluster: Cluster) -> Cluster:
    """Return the cluster with kernels that reach the data sheet."""
    ideal = cluster.with_devices(
        lambda device: dataclasses.replace(
            device,
            gemm_floor=0.0,
            gemm_efficiency=1.0,
            gemm_bandwidth=max(1.0, device.gemm_bandwidth),
            attention_efficiency=1.0,
            copy_efficiency=1.0,
            launch=0.0,
            sustained=1.0,
        )
    )
    return dataclasses.replace(ideal, factor=min(1.0, cluster.factor))
